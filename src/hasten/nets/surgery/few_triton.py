# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""`few_channels.convolved` and `few_channels.filters_gradient` in Triton. Importing this needs Triton.

Both are matrix products, in which the values that a voxel's filter covers, gathered from the image, are one factor.
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


class Geometry(NamedTuple):
    """A convolution's (D, H, W); in 2-D, D is 1 and so are its kernel and stride."""

    sides: Triple
    """Sides of the image, which has few channels."""
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
