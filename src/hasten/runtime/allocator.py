"""Settings of glibc's allocator that keep freed memory for the next step, or the next batch of windows.

On a CPU both allocate and free the same large blocks again and again. glibc gives each back to the kernel at once, and
the next one pays for thousands of page faults, each of which clears a page: a third of the time of a UNet on windows of
96^3.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hasten.config.decision import Accelerator

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1
_LARGEST = 32 << 20
"""Bytes to which glibc lets its limits grow by itself; setting one of them once stops that growth."""
_PROBE = 256 << 20


def keep_freed_memory() -> Accelerator:
    """Make glibc keep freed memory, for the whole process. Without glibc nothing changes, as the result says."""
    libc = _glibc()
    if libc is None:
        return Accelerator(False, "default", "the C library is not glibc")
    if not (libc.mallopt(_TRIM_THRESHOLD, _NEVER) and libc.mallopt(_MMAP_MAX, 0)):
        return Accelerator(False, "default", "glibc refused the setting")
    return Accelerator(True, "default", "freed host memory is kept for the next step, which saves its page faults")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        ("others", ctypes.c_size_t * 5),
    ]


@contextmanager
def kept_memory() -> Iterator[bool]:
    """Context manager: the process keeps freed memory for the next allocation; on exit it is returned to the system.

    Yields whether it has an effect: not without glibc 2.33 or later, and not where freed memory is kept already.
    """
    libc = _glibc()
    if libc is None or not hasattr(libc, "mallinfo2") or _kept(libc):
        yield False
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield True
    finally:
        libc.mallopt(_MMAP_MAX, 65536)
        libc.mallopt(_MMAP_THRESHOLD, _LARGEST)
        libc.mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)
        libc.malloc_trim(ctypes.c_size_t(0))


def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6") if sys.platform == "linux" else None
    except OSError:
        return None
    return libc if hasattr(libc, "mallopt") else None


def _kept(libc: ctypes.CDLL) -> bool:
    """Whether a block above every limit comes from the heap. Nothing is written to it, so it costs no memory.

    glibc does not report its settings. A free block of that size, or a thread with a heap of its own, can mislead: then
    memory is kept too short or not at all, which costs time and nothing else.
    """
    libc.mallinfo2.restype, libc.malloc.restype = _Mallinfo2, ctypes.c_void_p
    libc.malloc.argtypes, libc.free.argtypes = [ctypes.c_size_t], [ctypes.c_void_p]
    before = libc.mallinfo2().hblks
    block = libc.malloc(_PROBE)
    mapped: bool = libc.mallinfo2().hblks > before
    libc.free(block)
    return not mapped
