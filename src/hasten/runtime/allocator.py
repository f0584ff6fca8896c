"""Settings of glibc's allocator that keep freed memory for the next step, or the next batch of windows.

On a CPU both allocate and free the same large blocks again and again. glibc gives each back to the kernel at once, and
the next one pays for thousands of page faults, each of which clears a page: a third of the time of a UNet on windows of
96^3.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hasten.config.decision import Accelerator

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = 2**31 - 1
_LARGEST = 32 << 20
"""Bytes to which glibc lets its limits grow by itself; setting one of them once stops that growth."""
_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_")
"""Variables by which a user sets what glibc keeps, beside glibc.malloc... in GLIBC_TUNABLES."""
_keeping = False
"""Whether Hasten has set it: glibc does not report its settings."""


def keep_freed_memory() -> Accelerator:
    """Make glibc keep freed memory, for the whole process. Without glibc nothing changes, as the result says."""
    global _keeping
    libc = _glibc()
    if libc is None:
        return Accelerator(False, "default", "the C library is not glibc")
    if not (libc.mallopt(_TRIM_THRESHOLD, _NEVER) and libc.mallopt(_MMAP_MAX, 0)):
        return Accelerator(False, "default", "glibc refused the setting")
    _keeping = True
    return Accelerator(True, "default", "freed host memory is kept for the next step, which saves its page faults")


@contextmanager
def kept_memory() -> Iterator[bool]:
    """Context manager: the process keeps freed memory for the next allocation; on exit it is returned to the system.

    Yields whether it has an effect: not without glibc, and not where freed memory is kept already, by Hasten or as the
    user's environment sets it.
    """
    global _keeping
    libc = _glibc()
    chosen = any(name in os.environ for name in _SETTINGS) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if libc is None or _keeping or chosen:
        yield False
        return
    _keeping = True
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield True
    finally:
        _keeping = False
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
