"""Calls of the operating system that Python's own modules lack."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_FAILED = ctypes.c_void_p(-1).value
_MAP_FIXED = 0x10


class Span(NamedTuple):
    """A file, and the bytes of a larger range that it is mapped to."""

    path: Path
    start: int
    """A multiple of the page size."""
    size: int
    """Size of the whole file; 0 maps nothing."""


def map_privately(handle: int, size: int, offset: int) -> memoryview:
    """A range of an open file, to read and to change for oneself: a page is copied at its first change.

    offset: a multiple of the allocation granularity. The mapping ends with what refers to it. Not by the module `mmap`,
    each of whose mappings keeps a file handle open: the items of an epoch would exhaust the handles that a process may
    have. Raises OSError.
    """
    assert size > 0
    return _view_of(_mapped(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, handle, offset), size)


def map_files(spans: Sequence[Span], size: int) -> memoryview:
    """One read-only range of `size` bytes, in which each file lies where its span says; between them are zeros.

    The mapping ends with what refers to it. Writing to it ends the process. Raises OSError.
    """
    # Pages of zeros, not unmapped ones: a copy of the whole range reads the gaps too.
    address = _mapped(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    view = _view_of(address, size)
    for span in spans:
        assert span.start % mmap.PAGESIZE == 0
        assert span.start + span.size <= size
        if span.size:
            handle = os.open(span.path, os.O_RDONLY)
            try:
                _mapped(address + span.start, span.size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, handle, 0)
            finally:
                os.close(handle)
    return view


def _mapped(address: int | None, size: int, protection: int, flags: int, handle: int, offset: int) -> int:
    result = _libc().mmap(address, size, protection, flags, handle, offset)
    if result == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def _view_of(address: int, size: int) -> memoryview:
    """A mapping's bytes; it ends when nothing refers to them any more."""
    block = (ctypes.c_ubyte * size).from_address(address)
    # Not at exit: daemon threads may still read then, and the kernel reclaims everything anyway.
    weakref.finalize(block, _libc().munmap, address, size).atexit = False
    return memoryview(block).cast("B")


def read_ahead(address: int, size: int) -> None:
    """Let the kernel read a mapping's pages in the background, if they are on the disk."""
    start = address - address % mmap.PAGESIZE
    _libc().madvise(start, size + address - start, mmap.MADV_WILLNEED)


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes = [pointer, size, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [pointer, size]
    libc.madvise.argtypes = [pointer, size, number]
    return libc
