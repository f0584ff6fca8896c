"""Group norm and activation on a CPU as one C++ function each way, built by the first process that needs it.

`normact.cpp` beside this file says how it computes. Where there is no C++ compiler, torch's operations run instead.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from hasten.cache.key import cache_dir
from hasten.cache.publish import temporary_for
from hasten.config.schema import CacheConfig
from hasten.nets.surgery.layout import layout_of
from hasten.observe.env import cxx_compiler

log = logging.getLogger(__name__)

DTYPES = (torch.float32, torch.bfloat16)
_SOURCE = Path(__file__).with_name("normact.cpp")
_FLAGS = ("-O2", "-std=c++17", "-fopenmp", "-shared", "-fPIC", "-fno-exceptions", "-fno-rtti", "-ffp-contract=fast")
_INSTRUCTIONS = {
    "AVX512": ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mprefer-vector-width=512"),
    "AVX2": ("-mavx2", "-mfma"),
}
"""Flags by torch's name of the processor's capability; others compile for any processor of the architecture."""
_SECONDS = 120
"""Timeout of the compiler, which takes 2 s."""
_POINTER, _SIZE, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
_SHAPE = (_SIZE, _SIZE, _SIZE, _SIZE, _INT, _INT)


def cpu_kernel_takes(image: Tensor) -> bool:
    """Whether the C++ functions may run now on this tensor, (B, C, H, W) or (B, C, D, H, W).

    The first call builds them, in 2 s.
    """
    plain = type(image) is Tensor and image.device.type == "cpu" and image.numel() > 0
    return plain and image.dtype in DTYPES and library() is not None


def cpu_norm_act(
    image: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, slope: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The output in the image's memory format, and the mean and 1 / standard deviation of each group, (B, G) float32.

    image: (B, C, H, W) or (B, C, D, H, W), dense in either memory format. weight, bias: (C,) float32. slope: one
    element or (C,), float32. All in the memory of a CPU.
    """
    output = torch.empty_like(image)
    mean = image.new_empty(image.shape[0], groups, dtype=torch.float32)
    rstd = torch.empty_like(mean)
    _call("norm_act", image, groups, (image, output, mean, rstd, weight, bias, slope), slope, numbers=(eps,))
    return output, mean, rstd


def cpu_norm_act_backward(
    gradient: Tensor,
    image: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    slope: Tensor | None,
    *,
    of_image: bool,
) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
    """Gradients of the image, the weight, the bias and the slope; arguments as those and the results of `cpu_norm_act`.

    gradient: of the output, in the image's type, shape and memory format. of_image: whether that gradient is wanted.
    """
    to_image = torch.empty_like(image) if of_image else None
    to_weight = image.new_empty(image.shape[1], dtype=torch.float32)
    to_bias = torch.empty_like(to_weight)
    to_slope = torch.empty_like(slope) if slope is not None else None
    _call(
        "norm_act_backward", image, mean.shape[1], (gradient, image, mean, rstd, weight, bias, slope), slope,
        (to_image, to_weight, to_bias, to_slope),
    )  # fmt: skip
    return to_image, to_weight, to_bias, to_slope


def _call(
    name: str,
    image: Tensor,
    groups: int,
    tensors: Sequence[Tensor | None],
    slope: Tensor | None,
    results: Sequence[Tensor | None] = (),
    numbers: Sequence[float] = (),
) -> None:
    samples, channels = image.shape[:2]
    shape = (samples, channels, image[0, 0].numel(), groups)
    kind = (layout_of(image) is not torch.contiguous_format, image.dtype == torch.bfloat16)
    pointers, outputs = (
        [None if each is None else each.data_ptr() for each in group] for group in (tensors, results)
    )
    slopes = 0 if slope is None else slope.numel()
    loaded = library()
    assert loaded is not None
    failed = getattr(loaded, name)(*pointers, slopes, *outputs, *shape, *kind, *numbers, torch.get_num_threads())
    if failed:
        raise MemoryError(f"{name}: no memory for the sums of an image {tuple(image.shape)}")


@cache
def library() -> ctypes.CDLL | None:
    """The compiled functions, built if the cache folder lacks them; None, after a warning, where they can't be built."""
    try:
        path = _built(cache_dir(CacheConfig()) / "kernels")
        loaded = ctypes.CDLL(str(path))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        log.warning("norms and activations run as torch's operations: %s", reason)
        return None
    loaded.norm_act.argtypes = (*[_POINTER] * 7, _SIZE, *_SHAPE, _DOUBLE, _INT)
    loaded.norm_act_backward.argtypes = (*[_POINTER] * 7, _SIZE, *[_POINTER] * 4, *_SHAPE, _INT)
    return loaded


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
