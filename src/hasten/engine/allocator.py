"""Keeping freed host memory for the next step.

A training step on a CPU allocates and frees the same activations every time. glibc gives large blocks back to the
kernel at once, and the next step pays for thousands of page faults, each of which clears a page.
"""

from __future__ import annotations

import ctypes
import sys

from hasten.engine.measure import Engaged

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> Engaged:
    """Tell glibc to keep what is freed, for the whole process. Elsewhere nothing is changed, and the answer says so."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt if sys.platform == "linux" else None
    except (OSError, AttributeError):
        mallopt = None
    if mallopt is None:
        return Engaged(False, "the C library is not glibc")
    if not (mallopt(_TRIM_THRESHOLD, _NEVER) and mallopt(_MMAP_MAX, 0)):
        return Engaged(False, "glibc refused the setting")
    return Engaged(True, "freed host memory is kept for the next step, which saves its page faults")
