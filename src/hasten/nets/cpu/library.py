"""Builds the C++ functions for networks on a CPU; without torch, so that it can begin beside the imports."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

from hasten.cache.key import cache_dir
from hasten.cache.publish import as_value_error, temporary_for
from hasten.config.schema import CacheConfig
from hasten.files import expanded, make_writable
from hasten.observe.env import cpu_flags, cxx_compiler, driver_version, usual_compiler
from hasten.system import replace_file

_FOLDER = Path(__file__).parent
_LEVELS = {"normact": "-O2", "soft_counts": "-O2", "few_channels": "-O3"}
"""Optimisation of each source: -O3 compiles for twice as long, and makes the third one twice as fast."""
_ON_MAC = sys.platform == "darwin"
_OPENMP = ("-Xclang", "-fopenmp") if _ON_MAC else ("-fopenmp",)
# Apple's compiler comes without OpenMP: the library that torch has loaded serves.
_LINK = ("-shared", *(("-undefined", "dynamic_lookup") if _ON_MAC else ()))
_FLAGS = ("-std=c++17", *_OPENMP, "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=fast", "-Wno-psabi")
_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq", "fma")
_AVX2 = ("avx2", "fma")
_SECONDS = 120
"""Timeout of the compiler, which takes 3 s."""
_LOCK = threading.Lock()


def library() -> Path:
    """Path of the shared library, in $HASTEN_KERNELS or the cache folder; built into the latter if both lack it.

    Raises OSError, and the errors of `subprocess`, where it can't be built, and ValueError for a wrong cache folder.
    """
    with _LOCK:  # a thread of `build_ahead` may be at it
        return _built(_instructions(cpu_flags()))


def libraries() -> list[Path]:
    """`library` for all widths of vectors, as an image may be started on another processor; none on Windows."""
    if sys.platform == "win32":
        return []
    features: tuple[Sequence[str], ...] = (_AVX512, _AVX2, ()) if cpu_flags().issuperset(_AVX2) else ((),)
    with _LOCK:
        return [_built(_instructions(set(each))) for each in features]


def build_ahead() -> None:
    """Begin to build the library if there is none, beside whatever the caller does next; not where there are GPUs."""
    threading.Thread(target=_build_for_cpu, name="cpu-kernels").start()


def _build_for_cpu() -> None:
    # `library` raises these again, but for the RuntimeError, with which threads refuse work once the program ends.
    with suppress(OSError, ValueError, RuntimeError, subprocess.SubprocessError):
        if driver_version() is None:
            library()


@cache
def _built(instructions: tuple[str, ...]) -> Path:
    if sys.platform == "win32":
        raise OSError("the compiled functions are for g++ and clang++, and not built on Windows")
    flags = (*_FLAGS, *instructions)
    facts = (platform.machine(), sys.platform, os.environ.get("CXX"), flags, _LEVELS)
    digest = hashlib.sha256(repr(facts).encode())
    for source in (*(f"{name}.cpp" for name in _LEVELS), "vectors.h"):
        digest.update((_FOLDER / source).read_bytes())
    name, folder = f"cpu-{digest.hexdigest()[:24]}.so", cache_dir(CacheConfig()) / "kernels"
    # The folder of an image is read only.
    for path in (expanded(os.environ.get("HASTEN_KERNELS") or folder) / name, folder / name):
        if path.exists():
            return path
    with as_value_error(folder):
        make_writable(folder)
    compiler, temporary = cxx_compiler(), temporary_for(path)
    if compiler is None:
        raise OSError(f"there is no C++ compiler ({usual_compiler()[0]}, or the one that CXX names)")
    try:
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as threads:
            compiling = {}
            for name, level in _LEVELS.items():
                target = os.fsdecode(Path(scratch, f"{name}.o"))
                arguments = (*flags, level, "-c", os.fsdecode(_FOLDER / f"{name}.cpp"), "-o", target)
                compiling[target] = threads.submit(_compile, compiler, arguments)
            for each in compiling.values():
                each.result()
            _compile(compiler, (*flags, *_LINK, *compiling, "-o", os.fsdecode(temporary)))
        replace_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _compile(compiler: str, arguments: Sequence[str]) -> None:
    """Raises OSError with what the compiler says, and the errors of `subprocess`."""
    # The process that waits for it may have better things to do first, such as imports.
    lowered = ("nice", "-n", "10") if shutil.which("nice") else ()
    process = subprocess.run((*lowered, compiler, *arguments), capture_output=True, timeout=_SECONDS, check=False)
    if process.returncode:
        raise OSError(process.stderr.decode(errors="replace").strip() or f"{compiler} ended with an error")


def _instructions(flags: set[str]) -> tuple[str, ...]:
    """The compiler's flags for the widest vectors of a processor with these features; none for other architectures."""
    if flags.issuperset(_AVX512):
        return (*(f"-m{name}" for name in _AVX512), "-mprefer-vector-width=512")
    return tuple(f"-m{name}" for name in _AVX2) if flags.issuperset(_AVX2) else ()
