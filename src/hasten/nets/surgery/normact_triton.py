"""Norm, dropout and activation on a GPU, in Triton: two passes forward, two backward, and little else.

Forward: one pass over the image gives mean and sum of squared deviations of every chunk of voxels, a second, tiny
kernel merges them (Chan et al.), and one pass writes the output. Backward: one pass over image and gradient gives the
sums that all gradients are made of, and one writes the image's gradient. Nothing of the image's size is kept but the
image: the activation's derivative and the dropout's zeros are computed again. There are no atomics, so that results
repeat bit by bit, and block sizes are fixed by the shape, so that nothing is timed or read by the host. A batch norm is
an instance norm of one sample, whose voxels are those of the whole batch; in channels-last these lie alike in memory.

Importing this needs Triton; see `hasten.kernels.use.kernels_take`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.kernels.use import power_of_two
from hasten.nets.surgery.activate import Slope
from hasten.nets.surgery.layout import layout_of
from hasten.nets.surgery.normact_kernels import (
    apply_kernel,
    gradient_kernel,
    merge_kernel,
    moments_kernel,
    sums_kernel,
    totals_kernel,
)

_TILE = 4096
"""Elements that a program holds at once: 16 for each of 256 threads."""
_DROPOUT_TILE = 1024
"""Elements for the sums of the backward pass with a dropout: 8 for each of 128 threads. With 16, they take 160
registers, which leaves room for a single program on a multiprocessor."""
_FEW = 15
"""Channels up to which a kernel is built for their number: not a multiple of 16, they would be read one by one."""
_PROGRAMS = 2048
"""Programs that a reduction is split over, or up to half as many, where the image is large enough: some eight for each
of 132 multiprocessors, or more."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """How an image (B, C, voxels) is cut up; the same on every device, so that results are, too."""

    batch: int
    channels: int
    voxels: int
    last: bool
    """Channels-last: the channels of a voxel lie next to each other."""
    rows: int
    """Voxels of a tile."""
    columns: int
    """Channels of a tile."""
    per_chunk: int
    """Tiles of a chunk."""
    chunks: int
    """Chunks that the voxels are cut into for a reduction."""
    warps: int
    """Warps of a program."""

    @property
    def blocks(self) -> int:
        """Blocks of `columns` channels of the whole batch."""
        return self.batch * -(-self.channels // self.columns)

    @property
    def shape(self) -> dict[str, int | bool]:
        """Arguments that all kernels of an image share; those in capitals are known when a kernel is built."""
        few = self.channels if self.channels <= _FEW else 0
        return {"channels": self.channels, "FEW": few, "LAST": self.last, "ROWS": self.rows, "COLUMNS": self.columns}


def plan_of(batch: int, channels: int, voxels: int, *, last: bool, small: bool = False) -> Tiling:
    columns = 1
    if last:
        columns = next((each for each in (64, 32) if channels % each == 0), power_of_two(min(channels, 64)))
    tile, per_warp = (_DROPOUT_TILE, 256) if small else (_TILE, 512)
    rows = min(tile // columns, power_of_two(voxels))
    tiles = -(-voxels // rows)
    chunks = max(1, min(tiles, _PROGRAMS // (batch * -(-channels // columns))))
    per_chunk = -(-tiles // chunks)
    warps = max(1, min(8, rows * columns // per_warp))
    return Tiling(batch, channels, voxels, last, rows, columns, per_chunk, -(-tiles // per_chunk), warps)


@dataclass(frozen=True, slots=True)
class _Activation:
    """A slope as the kernels take it."""

    kind: int
    """0: none; 1: a number; 2: a tensor of one element; 3: one of each channel."""
    number: float
    values: Tensor | None

    @staticmethod
    def of(slope: Slope) -> _Activation:
        if slope is None:
            return _Activation(0, 1.0, None)
        if isinstance(slope, Tensor):
            return _Activation(2 if slope.numel() == 1 else 3, 1.0, slope)
        return _Activation(1, float(slope), None)


@dataclass(frozen=True, slots=True)
class _Dropout:
    """A dropout as the kernels take it."""

    seed: Tensor | None
    """(1,) int64 on the image's device, drawn from torch's generator there; None for no dropout."""
    share: float

    @staticmethod
    def draw(share: float, device: torch.device) -> _Dropout:
        return _Dropout(torch.randint(2**62, (1,), device=device) if share else None, share)

    @property
    def args(self) -> tuple[Tensor | None, int, float]:
        return self.seed, int(self.share * 2**31), 1 - self.share


class _TritonNormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        image: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        slope: Slope,
        groups: int,
        eps: float,
        dropout: float,
        running: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        layout = layout_of(image)
        image = image.contiguous(memory_format=layout)
        act, drops = _Activation.of(slope), _Dropout.draw(dropout, image.device)
        last = layout is not torch.contiguous_format
        batch, channels, voxels = len(image), image.shape[1], image.shape[2:].numel()
        if not groups:
            assert last
            batch, groups, voxels = 1, channels, batch * voxels
        plan = plan_of(batch, channels, voxels, last=last)
        with torch.cuda.device_of(image):
            moments = _moments(image, plan, groups, eps) if running is None else running
            output = torch.empty_like(image)
            tiles = -(-plan.voxels // plan.rows)
            apply_kernel[(plan.blocks * tiles,)](
                image, output, moments, weight, bias, act.values, act.number, *drops.args, plan.voxels, tiles,
                plan.batch, ACT=act.kind, **plan.shape, num_warps=plan.warps,
            )  # fmt: skip
        ctx.mark_non_differentiable(moments)
        ctx.save_for_backward(image, weight, bias, act.values, moments, drops.seed)
        ctx.plan, ctx.groups, ctx.kind, ctx.number = plan, groups, act.kind, act.number
        ctx.dropout, ctx.fixed = dropout, running is not None
        return output, moments

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        image, weight, bias, slope, moments, seed = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=layout_of(image))
        act, drops = _Activation(ctx.kind, ctx.number, slope), _Dropout(seed, ctx.dropout)
        plan: Tiling = ctx.plan
        with torch.cuda.device_of(image):
            sums, means = _sums(gradient, image, moments, weight, bias, act, drops, plan, ctx.groups)
            if ctx.fixed:
                means.zero_()  # the statistics do not follow the image
            out = None
            if ctx.needs_input_grad[0]:
                out = torch.empty_like(image)
                tiles = -(-plan.voxels // plan.rows)
                gradient_kernel[(plan.blocks * tiles,)](
                    gradient, image, out, moments, means, weight, bias, act.values, act.number, *drops.args,
                    plan.voxels, tiles, plan.batch, ACT=act.kind, **plan.shape, num_warps=plan.warps,
                )  # fmt: skip
            grads = _parameters(sums, (weight, bias, slope), ctx.needs_input_grad[1:4])
        return out, *grads, None, None, None, None


def _moments(image: Tensor, plan: Tiling, groups: int, eps: float) -> Tensor:
    """(2, B, C) float32: mean and 1 / sqrt(variance + eps) of each channel's group."""
    partial = image.new_empty(2, plan.batch, plan.chunks, plan.channels, dtype=torch.float32)
    moments_kernel[(plan.blocks * plan.chunks,)](
        image, partial, plan.voxels, plan.chunks, plan.batch, plan.per_chunk, **plan.shape, num_warps=plan.warps
    )
    moments = partial.new_empty(2, plan.batch, plan.channels)
    merge_kernel[(plan.batch * groups,)](
        partial, moments, plan.voxels, plan.rows * plan.per_chunk, plan.chunks, plan.batch, eps,
        **_merging(plan, groups), num_warps=4,
    )  # fmt: skip
    return moments


def _sums(
    gradient: Tensor,
    image: Tensor,
    moments: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    act: _Activation,
    drops: _Dropout,
    plan: Tiling,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """(3, B, C): sums over the voxels of g, g x^ and, for a learned slope, its gradient; (2, B, C) group means.

    g is the gradient before dropout and activation, x^ the normalised image; the means are of w g and w g x^ over a
    group.
    """
    if drops.seed is not None:
        plan = plan_of(plan.batch, plan.channels, plan.voxels, last=plan.last, small=True)
    learned = act.values is not None
    partial = moments.new_empty(3 if learned else 2, plan.batch, plan.chunks, plan.channels)
    sums_kernel[(plan.blocks * plan.chunks,)](
        gradient, image, partial, moments, weight, bias, act.values, act.number, *drops.args, plan.voxels,
        plan.chunks, plan.batch, plan.per_chunk, ACT=act.kind, **plan.shape, num_warps=plan.warps,
    )  # fmt: skip
    sums, means = moments.new_empty(len(partial), plan.batch, plan.channels), torch.empty_like(moments)
    totals_kernel[(plan.batch * groups,)](
        partial, sums, means, weight, plan.voxels, plan.chunks, plan.batch,
        LEARNED=learned, **_merging(plan, groups), num_warps=4,
    )  # fmt: skip
    return sums, means


def _merging(plan: Tiling, groups: int) -> dict[str, int]:
    """Sizes of the kernels that put chunks together, one program for each sample's group of channels."""
    width = plan.channels // groups
    columns = power_of_two(width)
    return {"C": plan.channels, "width": width, "COLUMNS": columns, "ROWS": max(1, 1024 // columns)}


def _parameters(sums: Tensor, parameters: tuple[Tensor | None, ...], needed: tuple[bool, ...]) -> list[Tensor | None]:
    """Gradients of weight, bias and slope from the sums (3, B, C)."""
    grads: list[Tensor | None] = [None, None, None]
    if not any(needed):
        return grads
    total = sums.sum(1)
    for place, row in enumerate((1, 0, 2)):
        parameter = parameters[place]
        if parameter is not None and needed[place]:
            each = total[row].sum() if parameter.numel() == 1 and place == 2 else total[row]
            grads[place] = each.reshape(parameter.shape).to(parameter.dtype)
    return grads


def triton_norm_act(
    image: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    slope: Slope,
    eps: float,
    dropout: float = 0.0,
    running: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """prelu(dropout(norm(image))), (B, C, ...) in the image's dtype and memory format, and the statistics.

    Arguments as of `hasten.nets.surgery.normact.group_norm_act`; the image is one that `kernels_take`. groups: 0 for a
    batch norm, whose image is in channels-last. The statistics are float32 of (2, B, C), of (2, 1, C) for a batch norm:
    mean and 1 / sqrt(variance + eps). running: those to take instead of the image's own. Differentiable once.
    """
    return _TritonNormAct.apply(image, weight, bias, slope, groups, eps, dropout, running)
