"""A pool of Python threads that provides the parallelism, while torch is limited to one thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from hasten.observe.cores import usable_cores

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _ThreadLimit:
    """The threads in `one_torch_thread`. Torch's setting is also one of the process, so they share its undo."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = 0
        self.before = 1


_LIMIT = _ThreadLimit()


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Run torch's CPU operators of the calling thread on that thread alone.

    `torch.set_num_threads` binds the calling thread, but it also sets what threads started later begin with. So the
    first to enter remembers the number and everyone who leaves writes that one back: a thread that was started in
    between would otherwise remember 1 and leave it behind for the training that follows.
    """
    with _LIMIT.lock:
        # This call also makes torch set up this thread now; its first operator would otherwise overwrite the number.
        current = torch.get_num_threads()
        if _LIMIT.threads == 0:
            _LIMIT.before = current
        _LIMIT.threads += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LIMIT.lock:
            _LIMIT.threads -= 1
            torch.set_num_threads(_LIMIT.before)


def on_threads(
    run: Callable[[_Item], _Result], items: Iterable[_Item], num_threads: int | None, ahead: int = 2
) -> Generator[_Result, None, None]:
    """What `run` returns for each item, in their order. The first that fails ends it.

    num_threads: None takes the usable cores. ahead: results per thread that may be in memory.
    """
    threads = max(1, usable_cores() if num_threads is None else num_threads)
    with one_torch_thread(), ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(run, item))
                if len(waiting) >= ahead * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
