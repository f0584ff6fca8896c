"""Items in memory that related processes share and may change privately, without copying them first."""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from multiprocessing.reduction import DupFd
from typing import Any

from hasten.cache.item_bytes import decode, encode, read_record


class SharedItems:
    """A nameless file in memory that holds records one after another.

    Worker processes, forked or spawned, read the same memory, so there is one copy however many they are. It is freed
    when no process and no item refers to it.
    """

    def __init__(self) -> None:
        self.handle = _nameless()
        self.end = 0
        self.lock = threading.Lock()

    def put(self, item: Any) -> SharedItem:
        """Store an item. Raises ValueError for one that `encode` refuses; OSError where memory is full."""
        pieces = encode(item)
        size = sum(memoryview(piece).nbytes for piece in pieces)
        with self.lock:
            start = self.end
            self.end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            os.ftruncate(self.handle, self.end)
        place = start
        for piece in pieces:
            rest = memoryview(piece)
            while rest.nbytes:
                written = os.pwrite(self.handle, rest, place)
                rest, place = rest[written:], place + written
        return SharedItem(self, start, size)

    def __getstate__(self) -> dict[str, Any]:
        return {"handle": DupFd(self.handle), "end": self.end}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.handle, self.end, self.lock = state["handle"].detach(), state["end"], threading.Lock()

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", -1), -1
        if handle >= 0:
            os.close(handle)


class SharedItem:
    """The place of an item in a store."""

    def __init__(self, store: SharedItems, start: int, size: int) -> None:
        self.store, self.start, self.size = store, start, size

    def item(self) -> Any:
        """The item, which may be changed: no other process or later access sees the changes."""
        return decode(read_record(self.store.handle, self.size, self.start), verify=False)


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hasten-cache")
    with tempfile.TemporaryFile() as file:  # no Linux
        return os.dup(file.fileno())
