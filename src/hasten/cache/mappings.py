"""Reuse of private memory mappings, so that pages are not mapped anew in every epoch.

On a virtual machine mapping the pages of an item takes longer than reading them. A mapping without references is kept
and reused once the changes made in it have been dropped; the kernel's page map shows whether any page was.
"""

from __future__ import annotations

import mmap
import os
from collections import deque

import numpy as np

from hasten.cache.libc import drop_changes, map_pages, unmap, view_of

_PRESENT_OR_SWAPPED, _OF_FILE = np.uint64(3 << 62), np.uint64(1 << 61)


_MOST_WAITING = 8192
"""Mappings that wait to be used again: each is one of the 65530 that Linux lets a process have."""


def mapping_slots(number: int = _MOST_WAITING) -> deque[None]:
    """Places for mappings that wait. Taking and returning one is atomic, even where a finalizer interrupts it."""
    return deque([None] * number)


class Mappings:
    """Mappings of one range of one file. `slots`: of `mapping_slots`, shared by the ranges of a data set."""

    def __init__(self, size: int, offset: int, slots: deque[None]) -> None:
        self.size, self.offset, self.slots = size, offset, slots
        self.free: deque[int] = deque()
        self.open = True

    def take(self, handle: int) -> memoryview:
        """The range's bytes, to read and to change for oneself. handle: of the file. Raises OSError."""
        try:
            address = self.free.pop()
        except IndexError:
            address = map_pages(handle, self.size, self.offset)
        else:
            self.slots.append(None)
            if is_changed(address, self.size):
                drop_changes(address, self.size)
        return view_of(address, self.size, lambda: self.give_back(address))

    def give_back(self, address: int) -> None:
        # Two at most: one item is in use and the next one is being made.
        if len(self.free) < 2 and self._place():
            self.free.append(address)
        else:
            unmap(address, self.size)
        if not self.open:
            self.close()

    def _place(self) -> bool:
        try:
            self.slots.pop()
        except IndexError:
            return False
        return True

    def close(self) -> None:
        """Unmap what is not in use now, and the rest when it is no longer."""
        self.open = False
        while self.free:
            unmap(self.free.pop(), self.size)
            self.slots.append(None)

    def __del__(self) -> None:
        self.close()


def is_changed(address: int, size: int) -> bool:
    """Whether any page of a private mapping differs from its file, or the system does not report it."""
    first, last = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    try:
        # No cached handle: after a fork it would report on the parent process.
        handle = os.open("/proc/self/pagemap", os.O_RDONLY)
        try:
            entries = np.frombuffer(os.pread(handle, 8 * (last - first), 8 * first), np.uint64)
        finally:
            os.close(handle)
    except OSError:
        return True
    private = ((entries & _PRESENT_OR_SWAPPED) != 0) & ((entries & _OF_FILE) == 0)
    return len(entries) < last - first or bool(private.any())
