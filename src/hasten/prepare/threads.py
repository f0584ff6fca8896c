"""Limits torch to one thread where a pool of Python threads provides the parallelism."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
