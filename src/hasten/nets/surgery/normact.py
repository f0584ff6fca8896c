"""Norm, dropout and activation as one differentiable operation that keeps the memory format.

The operation for a GPU is in `normact_triton`; on a CPU it is one C++ function each way, `hasten/nets/cpu/normact.cpp`.
torch's operations run for what those don't take, such as float64. Between forward and backward only the image is kept,
which is the output of the convolution before.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from hasten.devices import kind_of
from hasten.nets.cpu.kernels import call, cpu_kernels
from hasten.nets.surgery.layout import Slope, layout_of

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
    slopes = 0 if affine.slope is None else affine.slope.numel()
    sizes = (*image.shape[:2], image[0, 0].numel(), norm.groups, slopes, norm.seed)
    last, bfloat16 = layout_of(image) is not torch.contiguous_format, image.dtype == torch.bfloat16
    # In the order of the structure's fields.
    return _Settings(*sizes, norm.eps, norm.dropout, last, bfloat16, norm.fixed, torch.get_num_threads())


class _CpuNormAct(torch.autograd.Function):
    """The C++ functions, on the image in its own memory format and everything else in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        slope: Slope,
        norm: Norm,
        given: Statistics | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        image = image.contiguous(memory_format=layout_of(image))
        affine = Affine(*map(_float32, (weight, bias, slope)))
        output, statistics = cpu_norm_act(image, norm, affine, given)
        ctx.mark_non_differentiable(*statistics)
        ctx.save_for_backward(image, *statistics, *affine)
        ctx.norm = norm
        ctx.dtypes = [each.dtype if isinstance(each, Tensor) else None for each in (weight, bias, slope)]
        return output, *statistics

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        image, mean, var, *affine = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=layout_of(image))
        to_image, grads = cpu_norm_act_backward(
            gradient, image, ctx.norm, Affine(*affine), Statistics(mean, var), of_image=ctx.needs_input_grad[0]
        )
        typed = (
            grad.to(dtype) if grad is not None and dtype is not None else None
            for grad, dtype in zip(grads, ctx.dtypes, strict=True)
        )
        return to_image, *typed, None, None


def _float32(values: Slope) -> Tensor | None:
    if values is None:
        return None
    return values.detach().float().contiguous() if isinstance(values, Tensor) else torch.tensor([float(values)])


def _seed(dropout: float) -> int:
    """A draw from torch's generator, so that a run with the same state draws the same zeros."""
    return int(torch.randint(1 << 62, ()).item()) if dropout else 0


def group_norm_act(
    image: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    slope: Slope = None,
    eps: float = 1e-5,
    dropout: float = 0.0,
) -> Tensor:
    """prelu(dropout(group_norm(image))); an instance norm where `groups` is the number of channels.

    image: (B, C, H, W) or (B, C, D, H, W), of any float type, on a CPU, or on a GPU where `kernels_take` it; there
    kernels run in channels-last only. weight, bias: (C,). slope: None for no activation, a number, or a tensor of one
    element or C. eps: added to each variance. dropout: the share of zeros, below 1. Differentiable once.
    """
    if has_torch_function((image,)):
        return handle_torch_function(group_norm_act, (image,), image, groups, weight, bias, slope, eps, dropout)
    if cpu_kernel_takes(image):
        norm = Norm(groups=groups, eps=eps, dropout=dropout, seed=_seed(dropout))
        return _CpuNormAct.apply(image, weight, bias, slope, norm, None)[0]
    if kind_of(image.device).triton and layout_of(image) is not torch.contiguous_format:
        from hasten.nets.surgery.normact_triton import triton_norm_act

        return triton_norm_act(image, groups, weight, bias, slope, eps, dropout)[0]
    normed = functional.group_norm(image.contiguous(), groups, weight, bias, eps)
    normed = normed.contiguous(memory_format=layout_of(image))
    normed = functional.dropout(normed, dropout) if dropout else normed
    if slope is None:
        return normed
    return functional.prelu(normed, slope) if isinstance(slope, Tensor) else functional.leaky_relu(normed, slope)


def batch_norm_act(
    image: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    slope: Slope,
    eps: float,
    dropout: float,
    given: Statistics | None,
) -> tuple[Tensor, Statistics]:
    """prelu(dropout(batch_norm(image))) and the statistics: the batch's, or those that are given.

    image: (B, C, ...) that `cpu_kernel_takes`, or in channels-last one that `kernels_take`; the other arguments as for
    `group_norm_act`. Differentiable once.
    """
    if kind_of(image.device).triton:
        from hasten.nets.surgery.normact_triton import triton_norm_act

        running = None if given is None else torch.stack([given.mean, (given.var + eps).rsqrt()])[:, None]
        output, moments = triton_norm_act(image, 0, weight, bias, slope, eps, dropout, running)
        if given is not None:
            return output, given
        mean, rstd = moments[:, 0]
        return output, Statistics(mean, (rstd.square().reciprocal() - eps).clamp(min=0))
    norm = Norm(groups=0, eps=eps, fixed=given is not None, dropout=dropout, seed=_seed(dropout))
    output, *statistics = _CpuNormAct.apply(image, weight, bias, slope, norm, given)
    return output, Statistics(*statistics)
