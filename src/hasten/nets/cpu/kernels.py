"""C++ functions for networks on a CPU, which the first process that needs them builds if there is a compiler."""

from __future__ import annotations

import ctypes
import logging
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from torch import Tensor

from hasten.files import last_line
from hasten.nets.cpu.library import library

log = logging.getLogger(__name__)

_NO_CLASS = "a label is none of the classes; the network needs an output for each label value, from 0 to the highest"
_FAILURES = {1: (MemoryError, "no memory for sums"), 2: (IndexError, _NO_CLASS)}
"""Errors by what a function returns."""


class CpuKernels(NamedTuple):
    """The functions, or None, and how they came or why there are none."""

    functions: ctypes.CDLL | None
    why: str


@cache
def cpu_kernels() -> CpuKernels:
    """The compiled functions, built if the cache folder lacks them; none, after a warning, if they can't be built."""
    begin = time.perf_counter()
    try:
        functions = ctypes.CDLL(str(library()))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = last_line(error)
        log.warning("norms, losses and convolutions of few channels run as torch's operations: %s", reason)
        return CpuKernels(None, f"torch's operations run: {reason}")
    return CpuKernels(functions, f"compiled functions, opened or built in {time.perf_counter() - begin:.1f} s")


def call(name: str, settings: ctypes.Structure, tensors: Sequence[Tensor | None]) -> None:
    """Call a function on the memory of dense tensors, of any shape, of a CPU. There must be `cpu_kernels`.

    Raises MemoryError, and IndexError for a label that is none of the classes.
    """
    pointers = (None if each is None else each.data_ptr() for each in tensors)
    failure = getattr(cpu_kernels().functions, name)(ctypes.byref(settings), *map(ctypes.c_void_p, pointers))
    if failure:
        kind, message = _FAILURES[failure]
        raise kind(f"{name}: {message}")
