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
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt if sys.platform == "linux" else None
    except (OSError, AttributeError):
        mallopt = None
    if mallopt is None:
        return Accelerator(False, "default", "the C library is not glibc")
    if not (mallopt(_TRIM_THRESHOLD, _NEVER) and mallopt(_MMAP_MAX, 0)):
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
    if libc is None or _kept(libc):
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
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = _Mallinfo2
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
    except (OSError, AttributeError):
        return None
    return libc


def _kept(libc: ctypes.CDLL) -> bool:
    """Whether a block above every limit comes from the heap. Nothing is written to it, so it costs no memory.

    glibc does not report its settings. A free block of that size, or a thread with a heap of its own, can mislead: then
    memory is kept too short or not at all, which costs time and nothing else.
    """
    before = libc.mallinfo2().hblks
    block = libc.malloc(_PROBE)
    mapped: bool = libc.mallinfo2().hblks > before
    libc.free(block)
    return not mapped
