# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The products of `few_channels` in Triton. Importing this needs Triton.

For an image of few channels, the values that a voxel's filter covers are gathered as one factor of a matrix product. A
result of few channels is a sum of products, one for each tap of the filter.
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
_PART = 32
"""Values of a voxel's filter that `convolve_kernel` multiplies at once."""
_WIDTH = 64
"""Channels of the result that a program computes at most; 16 at least, for the matrix units."""
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
def places(
    voxel, value, depth, height, width, image_depth, image_height, image_width, stride_0, stride_1, stride_2,
    padding_0, padding_1, padding_2, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Where in the image a value of a voxel's filter lies, and whether that is within it. value: tap * CHANNELS +
    channel; HEIGHT and WIDTH are the kernel's.
    """
    tap = value // CHANNELS
    z = voxel // (width * height) % depth * stride_0 - padding_0 + tap // (WIDTH * HEIGHT)
    y = voxel // width % height * stride_1 - padding_1 + tap // WIDTH % HEIGHT
    x = voxel % width * stride_2 - padding_2 + tap % WIDTH
    inside = (z >= 0) & (z < image_depth) & (y >= 0) & (y < image_height) & (x >= 0) & (x < image_width)
    row = ((voxel // (width * height * depth) * image_depth + z) * image_height + y) * image_width + x
    return row * CHANNELS + value % CHANNELS, inside


@triton.jit
def convolve_kernel(
    image, filters, result, voxels, channels, values, depth, height, width, image_depth, image_height, image_width,
    stride_0, stride_1, stride_2, padding_0, padding_1, padding_2, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, VALUES: tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result[v, c] = sum over values of filters[c, value] * image[place of the value for v]."""
    voxel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    channel = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.static_range(0, VALUES, PART):
        value = first + tl.arange(0, PART)
        place, inside = places(
            voxel, value[:, None], depth, height, width, image_depth, image_height, image_width, stride_0, stride_1,
            stride_2, padding_0, padding_1, padding_2, HEIGHT, WIDTH, CHANNELS,
        )  # fmt: skip
        there = inside & (voxel < voxels) & (value[:, None] < values)
        gathered = tl.load(image + place, there, other=0.0)
        known = (channel < channels) & (value[None, :] < values)
        factors = tl.load(filters + channel * values + value[None, :], known, other=0.0)
        sums = tl.dot(factors, gathered, sums)
    target = result + voxel.to(tl.int64) * channels + channel
    tl.store(target, sums.to(result.dtype.element_ty), (voxel < voxels) & (channel < channels))


@triton.jit
def filters_kernel(
    image, gradient, result, voxels, channels, values, steps, depth, height, width, image_depth, image_height,
    image_width, stride_0, stride_1, stride_2, padding_0, padding_1, padding_2, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, VALUES: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result[program, value, c] = sum over its voxels of image[place of the value for v] * gradient[v, c]."""
    program = tl.program_id(0)
    value = tl.arange(0, VALUES)[:, None]
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros((VALUES, COLUMNS), tl.float32)
    for step in range(steps):
        voxel = (program * steps + step) * BLOCK + tl.arange(0, BLOCK)
        place, inside = places(
            voxel[None, :], value, depth, height, width, image_depth, image_height, image_width, stride_0, stride_1,
            stride_2, padding_0, padding_1, padding_2, HEIGHT, WIDTH, CHANNELS,
        )  # fmt: skip
        there = inside & (voxel[None, :] < voxels) & (value < values)
        gathered = tl.load(image + place, there, other=0.0)
        rows = gradient + voxel[:, None].to(tl.int64) * channels + channel
        sums = tl.dot(gathered, tl.load(rows, (voxel[:, None] < voxels) & (channel < channels), other=0.0), sums)
    target = result + (program * VALUES + value) * channels + channel
    tl.store(target, sums, channel < channels)


@triton.jit
def axis(place, length, tap, stride, padding, TRANSPOSED: tl.constexpr):
    """Where along an axis of the image a tap of the filter lies for a place of the result, and whether it is there."""
    if TRANSPOSED:
        there = place + padding - tap
        return there // stride, (there >= 0) & (there % stride == 0) & (there < length * stride)
    else:
        there = place * stride - padding + tap
        return there, (there >= 0) & (there < length)


@triton.jit
def narrow_kernel(
    image, filters, bias, result, voxels, channels, few, chunks, parts, depth, height, width, image_depth,
    image_height, image_width, stride_0, stride_1, stride_2, padding_0, padding_1, padding_2, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, TRANSPOSED: tl.constexpr, BIAS: tl.constexpr, PART: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """result[v, f] = bias[f] + sum over taps and channels of image[place of the tap for v, c] * filters[tap, c, f].

    parts: taps * chunks, a chunk being PART channels.
    """
    voxel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    z, y, x = voxel // (width * height) % depth, voxel // width % height, voxel % width
    case = voxel // (width * height * depth) * image_depth
    column = tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros((BLOCK, COLUMNS), tl.float32)
    for part in range(parts):
        tap = part // chunks
        channel = part % chunks * PART + tl.arange(0, PART)
        from_z, in_z = axis(z, image_depth, tap // (WIDTH * HEIGHT), stride_0, padding_0, TRANSPOSED)
        from_y, in_y = axis(y, image_height, tap // WIDTH % HEIGHT, stride_1, padding_1, TRANSPOSED)
        from_x, in_x = axis(x, image_width, tap % WIDTH, stride_2, padding_2, TRANSPOSED)
        row = (((case + from_z) * image_height + from_y) * image_width + from_x).to(tl.int64)
        inside = (in_z & in_y & in_x & (voxel < voxels))[:, None] & (channel < channels)[None, :]
        values = tl.load(image + row[:, None] * channels + channel[None, :], inside, other=0.0)
        known = (channel < channels)[:, None] & (column < few)
        factors = tl.load(filters + (tap * channels + channel)[:, None] * few + column, known, other=0.0)
        sums = tl.dot(values, factors, sums)
    if BIAS:
        sums += tl.load(bias + column, column < few, other=0.0).to(tl.float32)
    target = result + voxel[:, None] * few + column
    tl.store(target, sums.to(result.dtype.element_ty), (voxel < voxels)[:, None] & (column < few))


def convolve(image: Tensor, filters: Tensor, result: Tensor, geometry: Geometry) -> None:
    """image: (B * D * H * W, few) rows, filters: (C, taps * few), result: (B * d * h * w, C), all of one type."""
    (channels, values), voxels = filters.shape, len(result)
    rows = _columns(channels)
    block = _GATHERED // _PART
    with torch.cuda.device_of(image):
        convolve_kernel[(triton.cdiv(voxels, block), triton.cdiv(channels, rows))](
            image, filters, result, voxels, channels, values, *_numbers(geometry), *geometry.kernel[1:],
            CHANNELS=image.shape[1], VALUES=_values(values), PART=_PART, ROWS=rows, BLOCK=block, num_warps=4,
        )  # fmt: skip


def outer_products(image: Tensor, gradient: Tensor, geometry: Geometry) -> Tensor:
    """(taps * few, C) float32. image: (B * D * H * W, few) rows. gradient: (B * d * h * w, C)."""
    voxels, channels = gradient.shape
    values = image.shape[1] * geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
    padded, columns = _values(values), _columns(channels)
    block = _GATHERED // padded
    steps = triton.cdiv(voxels, block * _PROGRAMS)
    programs = triton.cdiv(voxels, block * steps)
    sums = torch.empty(programs, padded, channels, device=image.device)
    with torch.cuda.device_of(image):
        filters_kernel[(programs, triton.cdiv(channels, columns))](
            image, gradient, sums, voxels, channels, values, steps, *_numbers(geometry), *geometry.kernel[1:],
            CHANNELS=image.shape[1], VALUES=padded, COLUMNS=columns, BLOCK=block, num_warps=4,
        )  # fmt: skip
    return sums.sum(0)[:values]


def narrow(
    image: Tensor, filters: Tensor, bias: Tensor | None, result: Tensor, geometry: Geometry, *, transposed: bool
) -> None:
    """A convolution to few channels, or a transposed one.

    image: (B * D * H * W, C) rows, filters: (taps, C, few), result: (B * d * h * w, few), all of one type.
    """
    taps, channels, few = filters.shape
    part = min(_WIDTH, max(16, power_of_two(channels)))
    chunks = triton.cdiv(channels, part)
    with torch.cuda.device_of(image):
        narrow_kernel[(triton.cdiv(len(result), _ROWS),)](
            image, filters, bias, result, len(result), channels, few, chunks, taps * chunks, *_numbers(geometry),
            *geometry.kernel[1:], TRANSPOSED=transposed, BIAS=bias is not None, PART=part, COLUMNS=16, BLOCK=_ROWS,
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
    return *geometry.result, *geometry.sides, *geometry.stride, *geometry.padding


def _values(count: int) -> int:
    return max(_PART, power_of_two(count))


def _columns(channels: int) -> int:
    return min(_WIDTH, max(16, power_of_two(channels)))
