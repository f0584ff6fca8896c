# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The products of `few_channels` in Triton. Importing this needs Triton.

For an image of few channels, the values that a voxel's filter covers are gathered as one factor of a matrix product, a
product for each channel. A result of few channels is a sum of products, one for each tap of the filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.config.schema import Triple
from hasten.kernels.use import power_of_two

_GATHERED = 4096
"""Values of the image that a program gathers at once."""
_TAPS = 32
"""Taps of a filter that `convolve_kernel` multiplies at once."""
_WIDTH = 64
"""Channels that a program computes or multiplies at once, at most; 16 at least, for the matrix units."""
_PROGRAMS = 512
"""Programs that sum gradients of filters; their sums are added by torch."""
_ROWS = 128
"""Voxels of a result of few channels that a program computes."""


class Geometry(NamedTuple):
    """(D, H, W) of a convolution of an image; in 2-D, D is 1 and so are its kernel and stride."""

    sides: Triple
    """Sides of the image."""
    result: Triple
    kernel: Triple
    stride: Triple
    padding: Triple


@triton.jit
def split(voxel, depth, height, width):
    """Case and place of a voxel of the result."""
    return voxel // (width * height * depth), voxel // (width * height) % depth, voxel // width % height, voxel % width


@triton.jit
def axis(place, length, tap, padding, STRIDE: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Where along an axis of the image a tap of the filter lies for a place of the result, and whether it is there."""
    if TRANSPOSED:
        there = place + padding - tap
        inside = (there.to(tl.uint32) < (length * STRIDE).to(tl.uint32)) & (there % STRIDE == 0)
        return there // STRIDE, inside
    else:
        # As an unsigned number, one below 0 is a large one.
        there = place * STRIDE - padding + tap
        return there, there.to(tl.uint32) < length.to(tl.uint32)


@triton.jit
def source(
    case, z, y, x, tap, depth, height, width, padding_0, padding_1, padding_2, STRIDE_0: tl.constexpr,
    STRIDE_1: tl.constexpr, STRIDE_2: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Row of the image where a tap lies for a place of the result, and whether there is one. HEIGHT and WIDTH are the
    kernel's.
    """
    from_z, in_z = axis(z, depth, tap // (WIDTH * HEIGHT), padding_0, STRIDE_0, TRANSPOSED)
    from_y, in_y = axis(y, height, tap // WIDTH % HEIGHT, padding_1, STRIDE_1, TRANSPOSED)
    from_x, in_x = axis(x, width, tap % WIDTH, padding_2, STRIDE_2, TRANSPOSED)
    return ((case * depth + from_z) * height + from_y) * width + from_x, in_z & in_y & in_x


@triton.jit
def convolve_kernel(
    image, filters, result, voxels, channels, taps, depth, height, width, image_depth, image_height, image_width,
    padding_0, padding_1, padding_2, STRIDE_0: tl.constexpr, STRIDE_1: tl.constexpr, STRIDE_2: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr, TAPS: tl.constexpr, PART: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result[v, c] = sum over taps and few channels of filters[c, few, tap] * image[place of the tap for v, few]."""
    voxel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    case, z, y, x = split(voxel, depth, height, width)
    channel = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.static_range(0, TAPS, PART):
        tap = first + tl.arange(0, PART)
        row, inside = source(
            case, z, y, x, tap[:, None], image_depth, image_height, image_width, padding_0, padding_1, padding_2,
            STRIDE_0, STRIDE_1, STRIDE_2, HEIGHT, WIDTH, False,
        )  # fmt: skip
        there = inside & (voxel < voxels) & (tap[:, None] < taps)
        known = (channel < channels) & (tap[None, :] < taps)
        for few in tl.static_range(FEW):
            gathered = tl.load(image + row * FEW + few, there, other=0.0)
            factors = tl.load(filters + (channel * FEW + few) * taps + tap[None, :], known, other=0.0)
            sums = tl.dot(factors, gathered, sums)
    target = result + voxel.to(tl.int64) * channels + channel
    tl.store(target, sums.to(result.dtype.element_ty), (voxel < voxels) & (channel < channels))


@triton.jit
def filters_kernel(
    image, gradient, result, voxels, channels, taps, steps, depth, height, width, image_depth, image_height,
    image_width, padding_0, padding_1, padding_2, STRIDE_0: tl.constexpr, STRIDE_1: tl.constexpr,
    STRIDE_2: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr, TAPS: tl.constexpr,
    COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result[program, few, tap, c] = sum over its voxels of image[place of the tap for v, few] * gradient[v, c]."""
    program = tl.program_id(0)
    tap = tl.arange(0, TAPS)[:, None]
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    # One sum for each of the few channels, as Triton has no lists of tensors.
    sums_0 = tl.zeros((TAPS, COLUMNS), tl.float32)
    sums_1, sums_2, sums_3 = sums_0, sums_0, sums_0
    for step in range(steps):
        voxel = (program * steps + step) * BLOCK + tl.arange(0, BLOCK)
        case, z, y, x = split(voxel[None, :], depth, height, width)
        row, inside = source(
            case, z, y, x, tap, image_depth, image_height, image_width, padding_0, padding_1, padding_2, STRIDE_0,
            STRIDE_1, STRIDE_2, HEIGHT, WIDTH, False,
        )  # fmt: skip
        there = inside & (voxel[None, :] < voxels) & (tap < taps)
        place = gradient + voxel[:, None].to(tl.int64) * channels + channel
        factors = tl.load(place, (voxel[:, None] < voxels) & (channel < channels), other=0.0)
        values = image + row * FEW
        sums_0 = tl.dot(tl.load(values, there, other=0.0), factors, sums_0)
        if FEW > 1:
            sums_1 = tl.dot(tl.load(values + 1, there, other=0.0), factors, sums_1)
        if FEW > 2:
            sums_2 = tl.dot(tl.load(values + 2, there, other=0.0), factors, sums_2)
        if FEW > 3:
            sums_3 = tl.dot(tl.load(values + 3, there, other=0.0), factors, sums_3)
    target = result + (program * FEW * TAPS + tap) * channels + channel
    known = channel < channels
    tl.store(target, sums_0, known)
    if FEW > 1:
        tl.store(target + TAPS * channels, sums_1, known)
    if FEW > 2:
        tl.store(target + 2 * TAPS * channels, sums_2, known)
    if FEW > 3:
        tl.store(target + 3 * TAPS * channels, sums_3, known)


@triton.jit
def narrow_kernel(
    image, filters, bias, result, voxels, channels, few, chunks, parts, depth, height, width, image_depth,
    image_height, image_width, padding_0, padding_1, padding_2, STRIDE_0: tl.constexpr, STRIDE_1: tl.constexpr,
    STRIDE_2: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TRANSPOSED: tl.constexpr, BIAS: tl.constexpr,
    PART: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result[v, f] = bias[f] + sum over taps and channels of image[place of the tap for v, c] * filters[tap, c, f].

    parts: taps * chunks, a chunk being PART channels.
    """
    voxel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    case, z, y, x = split(voxel, depth, height, width)
    column = tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros((BLOCK, COLUMNS), tl.float32)
    for part in range(parts):
        tap = part // chunks
        channel = part % chunks * PART + tl.arange(0, PART)
        row, inside = source(
            case, z, y, x, tap, image_depth, image_height, image_width, padding_0, padding_1, padding_2, STRIDE_0,
            STRIDE_1, STRIDE_2, HEIGHT, WIDTH, TRANSPOSED,
        )  # fmt: skip
        there = (inside & (voxel < voxels))[:, None] & (channel < channels)[None, :]
        values = tl.load(image + row.to(tl.int64)[:, None] * channels + channel[None, :], there, other=0.0)
        known = (channel < channels)[:, None] & (column < few)
        factors = tl.load(filters + (tap * channels + channel)[:, None] * few + column, known, other=0.0)
        sums = tl.dot(values, factors, sums)
    if BIAS:
        sums += tl.load(bias + column, column < few, other=0.0).to(tl.float32)
    target = result + voxel[:, None] * few + column
    tl.store(target, sums.to(result.dtype.element_ty), (voxel < voxels)[:, None] & (column < few))


def convolve(image: Tensor, filters: Tensor, result: Tensor, geometry: Geometry) -> None:
    """image: (B * D * H * W, few) rows, filters: (C, few, taps), result: (B * d * h * w, C), all of one type."""
    (channels, few, taps), voxels = filters.shape, len(result)
    padded, rows = _padded(taps), _columns(channels)
    part = min(padded, _TAPS)
    block = _GATHERED // _TAPS
    with torch.cuda.device_of(image):
        convolve_kernel[(triton.cdiv(voxels, block), triton.cdiv(channels, rows))](
            image, filters, result, voxels, channels, taps, *_numbers(geometry), FEW=few, TAPS=padded, PART=part,
            ROWS=rows, BLOCK=block, **_shape(geometry), num_warps=4,
        )  # fmt: skip


def outer_products(image: Tensor, gradient: Tensor, geometry: Geometry) -> Tensor:
    """(few, taps, C) float32. image: (B * D * H * W, few) rows. gradient: (B * d * h * w, C)."""
    (voxels, channels), few = gradient.shape, image.shape[1]
    taps = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
    padded, columns = _padded(taps), _columns(channels)
    block = _GATHERED // max(padded, _TAPS)
    steps = triton.cdiv(voxels, block * _PROGRAMS)
    programs = triton.cdiv(voxels, block * steps)
    sums = torch.empty(programs, few, padded, channels, device=image.device)
    with torch.cuda.device_of(image):
        filters_kernel[(programs, triton.cdiv(channels, columns))](
            image, gradient, sums, voxels, channels, taps, steps, *_numbers(geometry), FEW=few, TAPS=padded,
            COLUMNS=columns, BLOCK=block, **_shape(geometry), num_warps=4,
        )  # fmt: skip
    return sums.sum(0)[:, :taps]


def narrow(
    image: Tensor, filters: Tensor, bias: Tensor | None, result: Tensor, geometry: Geometry, *, transposed: bool
) -> None:
    """A convolution to few channels, or a transposed one.

    image: (B * D * H * W, C) rows, filters: (taps, C, few), result: (B * d * h * w, few), all of one type.
    """
    taps, channels, few = filters.shape
    part = _columns(channels)
    chunks = triton.cdiv(channels, part)
    with torch.cuda.device_of(image):
        narrow_kernel[(triton.cdiv(len(result), _ROWS),)](
            image, filters, bias, result, len(result), channels, few, chunks, taps * chunks, *_numbers(geometry),
            TRANSPOSED=transposed, BIAS=bias is not None, PART=part, COLUMNS=16, BLOCK=_ROWS, **_shape(geometry),
            num_warps=4, num_stages=4,
        )  # fmt: skip


def geometry_of(
    sides: Sequence[int], result: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Geometry:
    """Geometry of a convolution in 2-D or 3-D."""
    image, wide, filters, steps = (_three(each, 1) for each in (sides, result, kernel, stride))
    return Geometry(image, wide, filters, steps, _three(padding, 0))


def _three(numbers: Sequence[int], first: int) -> Triple:
    *missing, height, width = (first, *numbers) if len(numbers) == 2 else numbers
    return missing[0], height, width


def _numbers(geometry: Geometry) -> tuple[int, ...]:
    return *geometry.result, *geometry.sides, *geometry.padding


def _shape(geometry: Geometry) -> dict[str, int]:
    """What the kernels are compiled for, so that no number is divided by one that is not known."""
    strides = {f"STRIDE_{axis}": stride for axis, stride in enumerate(geometry.stride)}
    return strides | {"HEIGHT": geometry.kernel[1], "WIDTH": geometry.kernel[2]}


def _padded(taps: int) -> int:
    return max(16, power_of_two(taps))


def _columns(channels: int) -> int:
    return min(_WIDTH, max(16, power_of_two(channels)))
