"""Norm, dropout and activation on a CPU as one C++ function each way: `hasten/nets/cpu/normact.cpp`."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hasten.nets.cpu.kernels import call, cpu_kernels
from hasten.nets.surgery.layout import layout_of

DTYPES = (torch.float32, torch.bfloat16)


class _Settings(ctypes.Structure):
    """`Settings` of `normact.cpp`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("samples", "channels", "voxels", "groups", "slopes", "seed")),
        *((name, ctypes.c_double) for name in ("eps", "dropout")),
        *((name, ctypes.c_int32) for name in ("last", "bfloat16", "fixed", "threads")),
    )


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
    """Groups of the channels; 0 for a batch norm."""
    eps: float
    """Added to each variance."""
    fixed: bool = False
    """Whether the statistics are given, as in evaluation mode."""
    dropout: float = 0.0
    """The share of zeros, below 1."""
    seed: int = 0
    """Seed of the dropout's draws."""


def cpu_kernel_takes(image: Tensor) -> bool:
    """Whether the C++ functions may run now on this tensor, (B, C, H, W) or (B, C, D, H, W).

    The first call builds them, in 2 s.
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
    call("norm_act", _settings(image, norm, affine), (image, output, *statistics, *affine))
    return output, statistics


def cpu_norm_act_backward(
    gradient: Tensor, image: Tensor, norm: Norm, affine: Affine, statistics: Statistics, *, of_image: bool
) -> tuple[Tensor | None, Affine]:
    """Gradients of the image and of `affine`; arguments as those and the results of `cpu_norm_act`.

    gradient: of the output, (B, C, ...) in the image's type and memory format. of_image: whether that of the image is
    wanted.
    """
    to_image = torch.empty_like(image) if of_image else None
    to_weight, to_bias = (torch.empty(image.shape[1], dtype=torch.float32) for _ in range(2))
    to_slope = torch.empty_like(affine.slope) if affine.slope is not None else None
    results = (to_image, to_weight, to_bias, to_slope)
    call("norm_act_backward", _settings(image, norm, affine), (gradient, image, *statistics, *affine, *results))
    return to_image, Affine(to_weight, to_bias, to_slope)


def _settings(image: Tensor, norm: Norm, affine: Affine) -> _Settings:
    return _Settings(
        samples=image.shape[0], channels=image.shape[1], voxels=image[0, 0].numel(), groups=norm.groups,
        slopes=0 if affine.slope is None else affine.slope.numel(), seed=norm.seed, eps=norm.eps, dropout=norm.dropout,
        last=layout_of(image) is not torch.contiguous_format, bfloat16=image.dtype == torch.bfloat16, fixed=norm.fixed,
        threads=torch.get_num_threads(),
    )  # fmt: skip
