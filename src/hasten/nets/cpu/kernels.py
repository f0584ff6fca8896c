"""C++ functions for networks on a CPU, which the first process that needs them builds if there is a compiler."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from hasten.cache.key import cache_dir
from hasten.cache.publish import temporary_for
from hasten.config.schema import CacheConfig
from hasten.files import last_line
from hasten.observe.env import required_cxx_compiler

log = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_LEVELS = {"normact": "-O2", "soft_counts": "-O2", "thin": "-O3"}
"""Optimisation of each source: -O3 compiles for twice as long, and makes the third one twice as fast."""
_FLAGS = ("-std=c++17", "-fopenmp", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=fast",
          "-Wno-psabi")  # fmt: skip
_INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mfma"),
}
"""Flags by torch's name of the processor's capability; others compile for any processor of the architecture."""
_SECONDS = 120
"""Timeout of the compiler, which takes 2 s."""
_LOCK = threading.Lock()
_FAILURES = {1: (MemoryError, "no memory for sums"), 2: (IndexError, "a label is none of the classes")}
"""Errors by what a function returns."""


class CpuKernels(NamedTuple):
    """The functions, or None, and how they came or why there are none."""

    functions: ctypes.CDLL | None
    why: str


def cpu_kernels() -> CpuKernels:
    """The compiled functions, built if the cache folder lacks them; none, after a warning, if they can't be built."""
    with _LOCK:  # a thread of `build_ahead` may be at it
        return _opened()


def build_ahead() -> None:
    """Begin to open or build the functions, beside whatever the caller does next."""
    threading.Thread(target=cpu_kernels, name="cpu-kernels").start()


@cache
def _opened() -> CpuKernels:
    begin = time.perf_counter()
    try:
        functions = ctypes.CDLL(str(_built(cache_dir(CacheConfig()) / "kernels")))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = last_line(error)
        log.warning("norms, losses and thin convolutions run as torch's operations: %s", reason)
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


def _built(folder: Path) -> Path:
    """Path of the library in this folder. Raises OSError and the errors of `subprocess`."""
    compiler = required_cxx_compiler()
    flags = (*_FLAGS, *_INSTRUCTIONS.get(torch.backends.cpu.get_cpu_capability(), ()))
    digest = hashlib.sha256(repr((os.uname().machine, sys.platform, compiler, flags, _LEVELS)).encode())
    for source in (*(f"{name}.cpp" for name in _LEVELS), "vectors.h"):
        digest.update((_FOLDER / source).read_bytes())
    path = folder / f"cpu-{digest.hexdigest()[:24]}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_for(path)
    try:
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as threads:
            compiling = {}
            for name, level in _LEVELS.items():
                target = os.fsdecode(Path(scratch, f"{name}.o"))
                arguments = (*flags, level, "-c", os.fsdecode(_FOLDER / f"{name}.cpp"), "-o", target)
                compiling[target] = threads.submit(_compile, compiler, arguments)
            for each in compiling.values():
                each.result()
            _compile(compiler, (*flags, "-shared", *compiling, "-o", os.fsdecode(temporary)))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _compile(compiler: str, arguments: Sequence[str]) -> None:
    """Raises OSError with what the compiler says, and the errors of `subprocess`."""
    process = subprocess.run((compiler, *arguments), capture_output=True, timeout=_SECONDS, check=False)
    if process.returncode:
        raise OSError(process.stderr.decode(errors="replace").strip() or f"{compiler} ended with an error")
