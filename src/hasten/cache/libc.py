"""Calls of the operating system that Python's own modules lack."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

_FAILED = ctypes.c_void_p(-1).value


def map_pages(handle: int, size: int, offset: int) -> int:
    """Address of a private mapping of an open file from `offset`, a multiple of the page size: writable, and each page
    one's own from its first change on.

    Not by the module `mmap`, each of whose mappings keeps a file handle open: an epoch's items held at once would use
    up all that a process may have. Raises OSError.
    """
    assert size > 0
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE
    address = _libc().mmap(None, size, protection, flags, handle, offset)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(address)


def unmap(address: int, size: int) -> None:
    _libc().munmap(address, size)


def drop_changes(address: int, size: int) -> None:
    """Give a private mapping the content of its file again."""
    _libc().madvise(address, size, mmap.MADV_DONTNEED)


def view_of(address: int, size: int, last: Callable[[], None]) -> memoryview:
    """A mapping's bytes; `last` is called when nothing refers to them any more."""
    block = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: daemon threads may still read then, and the kernel takes everything back anyway.
    weakref.finalize(block, last).atexit = False
    return memoryview(block).cast("B")


def lock_pages(address: int, size: int) -> bool:
    """Read the pages of a mapping and keep them in memory until it ends; False where the system does not allow it."""
    start = address - address % mmap.PAGESIZE
    return bool(_libc().mlock(start, size + address - start) == 0)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    ]  # fmt: skip
    libc.munmap.argtypes = libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
