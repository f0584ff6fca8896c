# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""Norm, dropout and activation on a GPU, in Triton: two passes forward, two backward, and little else.

Forward: one pass over the image gives mean and sum of squared deviations of every chunk of voxels, a second, tiny
kernel merges them (Chan et al.), and one pass writes the output. Backward: one pass over image and gradient gives the
sums that all gradients are made of, and one writes the image's gradient. Nothing of the image's size is kept but the
image: the activation's derivative and the dropout's zeros are computed again. There are no atomics, so that results
repeat bit by bit, and block sizes are fixed by the shape, so that nothing is timed or read by the host. A batch norm is
an instance norm of one sample, whose voxels are those of the whole batch; in channels-last these lie alike in memory.

Importing this needs Triton; see `hasten.kernels.use.kernels_take`.

An image (B, C, voxels) in channels-last is read in tiles of ROWS voxels and COLUMNS channels of one sample. The first
element of a tile is found in 64 bits, the others relative to it in 32. Few kernels are built, as each takes 0.1 to 0.3
s: sizes are arguments. FEW is the number of channels where that is small, so that a tile of whole voxels is known to be
contiguous, else 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from hasten.kernels.hash import hash_word
from hasten.kernels.use import power_of_two
from hasten.nets.surgery.layout import Slope, as_last


@triton.jit
def _channel_count(channels, FEW: tl.constexpr):
    """The number of channels."""
    if FEW:
        return FEW
    else:
        return channels


@triton.jit
def _place(program, pieces, C, COLUMNS: tl.constexpr):
    """Sample, first channel and piece of a program: channels change fastest, so that neighbours share cache lines."""
    blocks = tl.cdiv(C, COLUMNS)
    rest = program // blocks
    return rest // pieces, (program % blocks) * COLUMNS, rest % pieces


@triton.jit
def _start(sample, first, row, voxels, C):
    """Offset of a tile's first element."""
    return (sample.to(tl.int64) * voxels + row) * C + first


@triton.jit
def _offsets(C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a tile's elements from its start."""
    return tl.arange(0, ROWS)[:, None] * C + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def _within(row, first, voxels, C, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Mask of a tile's elements that exist."""
    rows, columns = row + tl.arange(0, ROWS)[:, None], first + tl.arange(0, COLUMNS)[None, :]
    return (rows < voxels) & (columns < C)


@triton.jit
def _of_channels(values, first, C, COLUMNS: tl.constexpr):
    """(1, COLUMNS) float32 of the values (C,)."""
    channels = first + tl.arange(0, COLUMNS)
    return tl.load(values + channels, channels < C, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _slope(slope, number, first, C, ACT: tl.constexpr, COLUMNS: tl.constexpr):
    if ACT == 3:
        return _of_channels(slope, first, C, COLUMNS)
    elif ACT == 2:
        return tl.load(slope).to(tl.float32)
    else:
        return number


@triton.jit
def _dropped(normed, seed, start, offsets, least, rest):
    """The dropout of a tile, which depends on the seed and on each element's place alone: 0, or 1 / `rest` times it.

    least: share of zeros, in 2^-31. Draws repeat after 2^32 elements.
    """
    words = tl.load(seed)
    first = hash_word(words.to(tl.uint32))
    second = hash_word((words >> 32).to(tl.uint32) + first)
    # The product spreads the places: hashed as they are, zeros of voxels that are some rows apart are correlated.
    drawn = hash_word((start.to(tl.uint32) + offsets.to(tl.uint32)) * 0x61C88647 + first) + second
    return tl.where((drawn >> 1).to(tl.int32) >= least, normed / rest, 0.0)


@triton.jit(do_not_specialize=["chunks", "batch", "per_chunk"])
def moments_kernel(
    image, partial, voxels, chunks, batch, per_chunk, channels,
    FEW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """partial (2, B, chunks, C): mean and sum of squared deviations of each chunk of `per_chunk` tiles."""
    C = _channel_count(channels, FEW)
    sample, first, chunk = _place(tl.program_id(0), chunks, C, COLUMNS)
    row = chunk.to(tl.int64) * (per_chunk * ROWS)
    place = image + _start(sample, first, row, voxels, C)
    offsets = _offsets(C, ROWS, COLUMNS)
    # Sums of what is left of a rough mean lose nothing to cancellation, however far from 0 the image is.
    mask = _within(row, first, voxels, C, ROWS, COLUMNS)
    value = tl.load(place + offsets, mask, other=0.0).to(tl.float32)
    rough = tl.sum(value, 0)[None, :] / tl.minimum(voxels - row, ROWS).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(per_chunk):
        at = row + tile * ROWS
        mask = _within(at, first, voxels, C, ROWS, COLUMNS)
        value = tl.load(place + offsets, mask, other=0.0).to(tl.float32)
        rest = tl.where(mask, value - rough, 0.0)
        total += rest
        squares += rest * rest
        place += ROWS * C
    count = tl.minimum(voxels - row, per_chunk * ROWS).to(tl.float32)
    sums = tl.sum(total, 0)[None, :]
    mean = rough + sums / count
    deviation = tl.maximum(tl.sum(squares, 0)[None, :] - sums * sums / count, 0.0)
    channels = first + tl.arange(0, COLUMNS)[None, :]
    into = partial + (sample * chunks + chunk) * C + channels
    tl.store(into, mean, channels < C)
    tl.store(into + batch * chunks * C, deviation, channels < C)


@triton.jit(do_not_specialize=["voxels", "size", "chunks", "batch", "C", "width"])
def merge_kernel(
    partial, moments, voxels, size, chunks, batch, eps, C, width, COLUMNS: tl.constexpr, ROWS: tl.constexpr
):
    """moments (2, B, C): mean and 1 / sqrt(variance + eps) of each group of `width` channels.

    size: voxels of a chunk.
    """
    groups = C // width
    sample, first = tl.program_id(0) // groups, (tl.program_id(0) % groups) * width
    columns = tl.arange(0, COLUMNS)[None, :]
    rows = tl.arange(0, ROWS)[:, None]
    means = partial + sample * chunks * C + first
    deviations = means + batch * chunks * C
    whole = voxels.to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(tl.cdiv(chunks, ROWS)):
        start = turn * ROWS
        mask = (start + rows < chunks) & (columns < width)
        share = tl.minimum(voxels - (start + rows).to(tl.int64) * size, size).to(tl.float32) / whole
        total += tl.where(mask, share * tl.load(means + (start + rows) * C + columns, mask, other=0.0), 0.0)
    mean = tl.sum(tl.sum(total, 0), 0) / width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(tl.cdiv(chunks, ROWS)):
        start = turn * ROWS
        mask = (start + rows < chunks) & (columns < width)
        share = tl.minimum(voxels - (start + rows).to(tl.int64) * size, size).to(tl.float32) / whole
        apart = tl.load(means + (start + rows) * C + columns, mask, other=0.0) - mean
        within = tl.load(deviations + (start + rows) * C + columns, mask, other=0.0)
        total += tl.where(mask, within / whole + share * apart * apart, 0.0)
    var = tl.sum(tl.sum(total, 0), 0) / width
    into = moments + sample * C + first + columns
    nothing = tl.zeros((1, COLUMNS), tl.float32)
    tl.store(into, nothing + mean, columns < width)
    tl.store(into + batch * C, nothing + 1.0 / tl.sqrt_rn(var + eps), columns < width)


@triton.jit(do_not_specialize=["least", "tiles", "batch"])
def apply_kernel(
    image, output, moments, weight, bias, slope, number, seed, least, rest, voxels, tiles, batch, channels,
    ACT: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The output, from the last tile to the first, as the image's end is still in the cache."""
    C = _channel_count(channels, FEW)
    sample, first, tile = _place(tl.num_programs(0) - 1 - tl.program_id(0), tiles, C, COLUMNS)
    row = tile.to(tl.int64) * ROWS
    mask = _within(row, first, voxels, C, ROWS, COLUMNS)
    start, offsets = _start(sample, first, row, voxels, C), _offsets(C, ROWS, COLUMNS)
    value = tl.load(image + start + offsets, mask, other=0.0).to(tl.float32)
    mean = _of_channels(moments + sample * C, first, C, COLUMNS)
    scale = _of_channels(moments + (batch + sample) * C, first, C, COLUMNS)
    if weight is not None:
        scale *= _of_channels(weight, first, C, COLUMNS)
    normed = (value - mean) * scale
    if bias is not None:
        normed += _of_channels(bias, first, C, COLUMNS)
    if seed is not None:
        normed = _dropped(normed, seed, start, offsets, least, rest)
    if ACT:
        factor = _slope(slope, number, first, C, ACT, COLUMNS)
        normed = tl.where(normed > 0, normed, normed * factor)
    tl.store(output + start + offsets, normed.to(output.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["least", "chunks", "batch", "per_chunk"])
def sums_kernel(
    gradient, image, partial, moments, weight, bias, slope, number, seed, least, rest, voxels, chunks, batch,
    per_chunk, channels,
    ACT: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """partial (2 or 3, B, chunks, C): sums of g, g x^ and, for a slope that is a tensor, its gradient.

    g: the gradient before dropout and activation. x^: the normalised image.
    """
    C = _channel_count(channels, FEW)
    sample, first, chunk = _place(tl.program_id(0), chunks, C, COLUMNS)
    row = chunk.to(tl.int64) * (per_chunk * ROWS)
    start = _start(sample, first, row, voxels, C)
    image += start
    gradient += start
    offsets = _offsets(C, ROWS, COLUMNS)
    mean = _of_channels(moments + sample * C, first, C, COLUMNS)
    rstd = _of_channels(moments + (batch + sample) * C, first, C, COLUMNS)
    factor = _slope(slope, number, first, C, ACT, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    along = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_slope = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(per_chunk):
        mask = _within(row + tile * ROWS, first, voxels, C, ROWS, COLUMNS)
        value = tl.load(image + offsets, mask, other=0.0).to(tl.float32)
        # 0 beyond the image, so that all sums are.
        upstream = tl.load(gradient + offsets, mask, other=0.0).to(tl.float32)
        if seed is not None:
            # First, as neither the slope nor any sum counts where it is 0.
            upstream = _dropped(upstream, seed, start, offsets, least, rest)
        hat = (value - mean) * rstd
        if ACT:
            normed = hat
            if weight is not None:
                normed *= _of_channels(weight, first, C, COLUMNS)
            if bias is not None:
                normed += _of_channels(bias, first, C, COLUMNS)
            if ACT > 1:
                to_slope += upstream * tl.minimum(normed, 0.0)
            upstream = tl.where(normed > 0, upstream, upstream * factor)
        total += upstream
        along += upstream * hat
        start += ROWS * C
        image += ROWS * C
        gradient += ROWS * C
    channels = first + tl.arange(0, COLUMNS)[None, :]
    into = partial + (sample * chunks + chunk) * C + channels
    tl.store(into, tl.sum(total, 0)[None, :], channels < C)
    tl.store(into + batch * chunks * C, tl.sum(along, 0)[None, :], channels < C)
    if ACT > 1:
        tl.store(into + 2 * batch * chunks * C, tl.sum(to_slope, 0)[None, :], channels < C)


@triton.jit
def _over_chunks(place, chunks, C, width, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    """(1, COLUMNS) sums of (chunks, C)."""
    columns, rows = tl.arange(0, COLUMNS)[None, :], tl.arange(0, ROWS)[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(tl.cdiv(chunks, ROWS)):
        start = turn * ROWS
        mask = (start + rows < chunks) & (columns < width)
        total += tl.load(place + (start + rows) * C + columns, mask, other=0.0)
    return tl.sum(total, 0)[None, :]


@triton.jit(do_not_specialize=["voxels", "chunks", "batch", "C", "width"])
def totals_kernel(
    partial, sums, means, weight, voxels, chunks, batch, C, width,
    LEARNED: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """sums (2 or 3, B, C): over the chunks; means (2, B, C): of w g and w g x^ over each group of `width` channels."""
    groups = C // width
    sample, first = tl.program_id(0) // groups, (tl.program_id(0) % groups) * width
    columns = tl.arange(0, COLUMNS)[None, :]
    place, layer = partial + sample * chunks * C + first, batch * chunks * C
    total = _over_chunks(place, chunks, C, width, COLUMNS, ROWS)
    along = _over_chunks(place + layer, chunks, C, width, COLUMNS, ROWS)
    into = sums + sample * C + first + columns
    tl.store(into, total, columns < width)
    tl.store(into + batch * C, along, columns < width)
    if LEARNED:
        to_slope = _over_chunks(place + 2 * layer, chunks, C, width, COLUMNS, ROWS)
        tl.store(into + 2 * batch * C, to_slope, columns < width)
    if weight is not None:
        factor = tl.load(weight + first + columns, columns < width, other=0.0).to(tl.float32)
        total *= factor
        along *= factor
    count = voxels.to(tl.float32) * width
    nothing = tl.zeros((1, COLUMNS), tl.float32)
    into = means + sample * C + first + columns
    tl.store(into, nothing + tl.sum(tl.sum(total, 0), 0) / count, columns < width)
    tl.store(into + batch * C, nothing + tl.sum(tl.sum(along, 0), 0) / count, columns < width)


@triton.jit(do_not_specialize=["least", "tiles", "batch"])
def gradient_kernel(
    gradient, image, out, moments, means, weight, bias, slope, number, seed, least, rest, voxels, tiles, batch,
    channels, ACT: tl.constexpr, FEW: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The image's gradient rstd (w g - mean(w g) - x^ mean(w g x^)), from the last tile to the first."""
    C = _channel_count(channels, FEW)
    sample, first, tile = _place(tl.num_programs(0) - 1 - tl.program_id(0), tiles, C, COLUMNS)
    row = tile.to(tl.int64) * ROWS
    mask = _within(row, first, voxels, C, ROWS, COLUMNS)
    start, offsets = _start(sample, first, row, voxels, C), _offsets(C, ROWS, COLUMNS)
    value = tl.load(image + start + offsets, mask, other=0.0).to(tl.float32)
    upstream = tl.load(gradient + start + offsets, mask, other=0.0).to(tl.float32)
    if seed is not None:
        upstream = _dropped(upstream, seed, start, offsets, least, rest)
    rstd = _of_channels(moments + (batch + sample) * C, first, C, COLUMNS)
    hat = (value - _of_channels(moments + sample * C, first, C, COLUMNS)) * rstd
    normed = hat
    if weight is not None:
        factor = _of_channels(weight, first, C, COLUMNS)
        normed *= factor
    if bias is not None:
        normed += _of_channels(bias, first, C, COLUMNS)
    if ACT:
        upstream = tl.where(normed > 0, upstream, upstream * _slope(slope, number, first, C, ACT, COLUMNS))
    if weight is not None:
        upstream *= factor
    through = _of_channels(means + sample * C, first, C, COLUMNS)
    along = _of_channels(means + (batch + sample) * C, first, C, COLUMNS)
    result = (upstream - through - hat * along) * rstd
    tl.store(out + start + offsets, result.to(out.dtype.element_ty), mask)


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
        return {"channels": self.channels, "FEW": few, "ROWS": self.rows, "COLUMNS": self.columns}


def plan_of(batch: int, channels: int, voxels: int, *, small: bool = False) -> Tiling:
    columns = next((each for each in (64, 32) if channels % each == 0), power_of_two(min(channels, 64)))
    tile, per_warp = (_DROPOUT_TILE, 256) if small else (_TILE, 512)
    rows = min(tile // columns, power_of_two(voxels))
    tiles = -(-voxels // rows)
    chunks = max(1, min(tiles, _PROGRAMS // (batch * -(-channels // columns))))
    per_chunk = -(-tiles // chunks)
    warps = max(1, min(8, rows * columns // per_warp))
    return Tiling(batch, channels, voxels, rows, columns, per_chunk, -(-tiles // per_chunk), warps)


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
        image = as_last(image)
        act, drops = _Activation.of(slope), _Dropout.draw(dropout, image.device)
        batch, channels, voxels = len(image), image.shape[1], image.shape[2:].numel()
        if not groups:
            batch, groups, voxels = 1, channels, batch * voxels
        plan = plan_of(batch, channels, voxels)
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
        gradient = as_last(gradient)
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
        plan = plan_of(plan.batch, plan.channels, plan.voxels, small=True)
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
