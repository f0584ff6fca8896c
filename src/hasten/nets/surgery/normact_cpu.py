"""Norm, dropout and activation on a CPU as one C++ function each way, built by the first process that needs it.

`normact.cpp` beside this file says how it computes. Where there is no C++ compiler, torch's operations run instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hasten.cache.key import cache_dir
from hasten.cache.publish import temporary_for
from hasten.config.schema import CacheConfig
from hasten.nets.surgery.layout import layout_of
from hasten.observe.env import cxx_compiler

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16)
_SOURCE = Path(__file__).with_name("normact.cpp")
_FLAGS = ("-O2", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=fast",
          "-Wno-psabi")  # fmt: skip
_INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mfma"),
}
"""Flags by torch's name of the processor's capability; others compile for any processor of the architecture."""
_SECONDS = 120
"""Timeout of the compiler, which takes 2 to 4 s."""


class _Settings(ctypes.Structure):
    """As in `normact.cpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("samples", "channels", "voxels", "groups", "slopes", "seed")),
        *((name, ctypes.c_double) for name in ("eps", "dropout")),
        *((name, ctypes.c_int32) for name in ("last", "bfloat16", "fixed", "threads")),
    )


class CpuKernels(NamedTuple):
    """The functions of `normact.cpp`, or None, and how they came or why there are none."""

    functions: ctypes.CDLL | None
    why: str


class Affine(NamedTuple):
    """What follows the normalisation: (C,) each, the slope one element or (C,), float32; None where there is none."""

    weight: Tensor | None
    bias: Tensor | None
    slope: Tensor | None


class Statistics(NamedTuple):
    """float32 mean and biased variance of each group, (B, G); of each channel, (C,), for a batch norm."""

    mean: Tensor
    var: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Norm:
    """The norm of a call, and the dropout between it and the activation."""

    groups: int
    """Of the channels; 0 for a batch norm."""
    eps: float
    """Added to each variance."""
    fixed: bool = False
    """Whether the statistics are given, as in evaluation mode."""
    dropout: float = 0.0
    """The share of zeros, below 1."""
    seed: int = 0
    """Of the dropout's draws."""


def cpu_kernel_takes(image: Tensor) -> bool:
    """Whether the C++ functions may run now on this tensor, (B, C, H, W) or (B, C, D, H, W).

    The first call builds them, in 2 to 4 s.
    """
    plain = type(image) is Tensor and image.device.type == "cpu" and image.numel() > 0
    return plain and image.dtype in DTYPES and cpu_kernels().functions is not None


def cpu_norm_act(
    image: Tensor, norm: Norm, affine: Affine, given: Statistics | None = None
) -> tuple[Tensor, Statistics]:
    """The output, in the image's memory format, and the statistics that it was normalised by.

    image: (B, C, H, W) or (B, C, D, H, W), dense in either memory format, in the memory of a CPU, as all the tensors
    are. given: the statistics, with `norm.fixed`.
    """
    output, statistics = torch.empty_like(image), given
    if statistics is None:
        mean = torch.empty((len(image), norm.groups) if norm.groups else image.shape[1], dtype=torch.float32)
        statistics = Statistics(mean, torch.empty_like(mean))
    functions = cpu_kernels().functions
    assert functions is not None
    _call(functions.norm_act, image, norm, affine, (image, output, *statistics, *affine))
    return output, statistics


def cpu_norm_act_backward(
    gradient: Tensor, image: Tensor, norm: Norm, affine: Affine, statistics: Statistics, *, of_image: bool
) -> tuple[Tensor | None, Affine]:
    """Gradients of the image and of `affine`; arguments as those and the results of `cpu_norm_act`.

    gradient: of the output, in the image's type, shape and memory format. of_image: whether that gradient is wanted.
    """
    to_image = torch.empty_like(image) if of_image else None
    to_weight, to_bias = (torch.empty(image.shape[1], dtype=torch.float32) for _ in range(2))
    to_slope = torch.empty_like(affine.slope) if affine.slope is not None else None
    results = (to_image, to_weight, to_bias, to_slope)
    functions = cpu_kernels().functions
    assert functions is not None
    _call(functions.norm_act_backward, image, norm, affine, (gradient, image, *statistics, *affine, *results))
    return to_image, Affine(to_weight, to_bias, to_slope)


def _call(function: Any, image: Tensor, norm: Norm, affine: Affine, tensors: Sequence[Tensor | None]) -> None:
    settings = _Settings(
        samples=image.shape[0], channels=image.shape[1], voxels=image[0, 0].numel(), groups=norm.groups,
        slopes=0 if affine.slope is None else affine.slope.numel(), seed=norm.seed, eps=norm.eps, dropout=norm.dropout,
        last=layout_of(image) is not torch.contiguous_format, bfloat16=image.dtype == torch.bfloat16, fixed=norm.fixed,
        threads=torch.get_num_threads(),
    )  # fmt: skip
    pointers = (None if each is None else each.data_ptr() for each in tensors)
    if function(ctypes.byref(settings), *map(ctypes.c_void_p, pointers)):
        raise MemoryError(f"no memory for the sums of a norm over an image {tuple(image.shape)}")


@cache
def cpu_kernels() -> CpuKernels:
    """The compiled functions, built if the cache folder lacks them; none, after a warning, if they can't be built."""
    begin = time.perf_counter()
    try:
        functions = ctypes.CDLL(str(_built(cache_dir(CacheConfig()) / "kernels")))
        _check(functions)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        log.warning("norms and activations run as torch's operations: %s", reason)
        return CpuKernels(None, f"torch's operations run: {reason}")
    return CpuKernels(functions, f"one function each way, opened or compiled in {time.perf_counter() - begin:.1f} s")


def _check(functions: ctypes.CDLL) -> None:
    """Raises OSError if the compiler made functions that are wrong."""
    image = torch.linspace(-2, 5, 2 * 3 * 35).sin().reshape(2, 3, 5, 7)
    output = torch.empty_like(image)
    mean, var = torch.empty(2, 3), torch.empty(2, 3)
    norm, affine = Norm(groups=3, eps=1e-5), Affine(None, None, torch.tensor([0.5]))
    _call(functions.norm_act, image, norm, affine, (image, output, mean, var, *affine))
    wanted = functional.leaky_relu(functional.instance_norm(image), 0.5)
    if not torch.allclose(output, wanted, atol=1e-4):
        raise OSError("the compiled functions give other results than torch's operations")


def _built(folder: Path) -> Path:
    """Path of the library in this folder. Raises OSError and the errors of `subprocess`."""
    compiler = cxx_compiler()
    if compiler is None:
        raise OSError("there is no C++ compiler (g++, or the one that CXX names)")
    flags = (*_FLAGS, *_INSTRUCTIONS.get(torch.backends.cpu.get_cpu_capability(), ()))
    identity = (os.uname().machine, sys.platform, compiler, flags)
    digest = hashlib.sha256(repr(identity).encode() + _SOURCE.read_bytes()).hexdigest()[:24]
    path = folder / f"normact-{digest}.so"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    temporary = temporary_for(path)
    command = (compiler, *flags, os.fsdecode(_SOURCE), "-o", os.fsdecode(temporary))
    try:
        process = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        if process.returncode:
            raise OSError(process.stderr.decode(errors="replace").strip() or f"{compiler} ended with an error")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
