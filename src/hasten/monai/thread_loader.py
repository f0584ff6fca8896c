"""`ThreadDataLoader`: a DataLoader whose batches are made on a thread of the same process, ahead of the training."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from monai.data import ThreadDataLoader as MonaiThreadDataLoader
from torch.utils.data import Dataset

from hasten.observe.ranges import LOADING, Range

_STOP = object()


class ThreadBuffer:
    """Prefetches up to `buffer_size` values of an iterable on a thread: MONAI's ThreadBuffer.

    An error of the iterable is raised in place of its value. The thread ends with the iteration, also when that stops
    early. timeout: accepted and ignored, as nothing is polled.
    """

    def __init__(self, src: Iterable[Any], buffer_size: int = 1, timeout: float = 0.01) -> None:
        if buffer_size < 1:
            raise ValueError(f"buffer_size={buffer_size}: give the number of batches to make ahead, 1 or more")
        self.src, self.buffer_size, self.timeout = src, buffer_size, timeout
        self._stop = threading.Event()

    def stop(self) -> None:
        """End the iteration after the next value."""
        self._stop.set()

    def __iter__(self) -> Iterator[Any]:
        batches: queue.Queue[Any] = queue.Queue(self.buffer_size)
        stop = self._stop = threading.Event()
        thread = threading.Thread(target=_make, args=(iter(self.src), batches, stop), name="loader", daemon=True)

        def end() -> None:
            stop.set()
            while thread.is_alive():
                # The thread may be waiting for room: discard values so that it can end.
                try:
                    batches.get(timeout=0.01)
                except queue.Empty:
                    thread.join(0.01)

        # Of an iterator that a program keeps to its end: a thread that frees tensors while Python shuts down aborts it.
        atexit.register(end)
        thread.start()
        try:
            get = Range(LOADING)(batches.get)
            while not stop.is_set() and (batch := get()) is not _STOP:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
        finally:
            end()
            atexit.unregister(end)


class ThreadDataLoader(MonaiThreadDataLoader):
    """MONAI's `DataLoader` that prefetches up to `buffer_size` batches on one thread.

    For cached data sets, whose items are cheap: no worker processes, no copies between them, and GPU tensors work.
    Other arguments are those of `DataLoader`: lists of samples are joined, and transforms draw from torch's seed. With
    num_workers > 0 the thread collects from worker processes.
    repeats: how many times in a row each batch is yielded. use_thread_workers: the workers are threads, which share the
    random transforms, so that their draws are not reproducible. buffer_timeout: accepted and ignored.
    A failing item raises its original error and traceback. The
    thread ends with the iteration, also when that stops early or fails.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        num_workers: int = 0,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        buffer_size: int = 1,
        buffer_timeout: float = 0.01,
        repeats: int = 1,
        use_thread_workers: bool = False,
        **settings: Any,
    ) -> None:
        if buffer_size < 1:
            raise ValueError(f"buffer_size={buffer_size}: give the number of batches to make ahead, 1 or more")
        if repeats < 1:
            raise ValueError(f"repeats={repeats}: give how often each batch comes, 1 or more")
        settings |= {"batch_size": batch_size, "shuffle": shuffle, "num_workers": num_workers}
        super().__init__(dataset, buffer_size, buffer_timeout, repeats, use_thread_workers, **settings)

    def __iter__(self) -> Iterator[Any]:
        for batch in ThreadBuffer(super(MonaiThreadDataLoader, self).__iter__(), self.buffer_size):
            for _ in range(self.repeats):
                yield batch


def _make(batches: Iterator[Any], target: queue.Queue[Any], stop: threading.Event) -> None:
    try:
        for batch in batches:
            target.put(batch)
            if stop.is_set():
                return
        target.put(_STOP)
    except BaseException as error:
        target.put(error)
    finally:
        # Worker processes end with their iterator, now and not at some later collection.
        shutdown = getattr(batches, "_shutdown_workers", None)
        if shutdown is not None and not getattr(batches, "_persistent_workers", False):
            shutdown()
