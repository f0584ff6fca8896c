# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
# ruff: noqa: RUF005 (Triton has no unpacking)
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

_TAPS = 32
"""Taps of a filter that are multiplied at once, at most."""
_WIDTH = 32
"""Channels that a program multiplies or computes at once, at most; 16 at least, for the matrix units."""
_PROGRAMS = 512
"""Programs that sum gradients of filters; their sums are added by torch."""
_ROWS = 128
"""Voxels that a program has at once."""


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
        inside = (there.to(tl.uint32) < tl.cast(length * STRIDE, tl.uint32)) & (there % STRIDE == 0)
        return there // STRIDE, inside
    else:
        # As an unsigned number, one below 0 is a large one.
        there = place * STRIDE - padding + tap
        return there, there.to(tl.uint32) < tl.cast(length, tl.uint32)


@triton.jit
def along(place, length, padding, STRIDE: tl.constexpr, TAPS: tl.constexpr):
    """Where all taps along an axis lie, and whether they are there: a tuple each."""
    places = ()
    insides = ()
    for tap in tl.static_range(TAPS):
        there, inside = axis(place, length, tap, padding, STRIDE, False)
        places = places + (there,)  # type: ignore[assignment]
        insides = insides + (inside,)  # type: ignore[assignment]
    return places, insides


@triton.jit
def covered(
    voxel, there, depth, height, width, image_depth, image_height, image_width, padding_0, padding_1, padding_2,
    STRIDE_0: tl.constexpr, STRIDE_1: tl.constexpr, STRIDE_2: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Where the values of all taps lie for (BLOCK,) voxels of the result, and whether they are within the image.

    DEPTH, HEIGHT and WIDTH are the kernel's. A thread has all values of a voxel, so that taps are known when this is
    compiled.
    """
    case, z, y, x = split(voxel, depth, height, width)
    from_z, in_z = along(z, image_depth, padding_0, STRIDE_0, DEPTH)
    from_y, in_y = along(y, image_height, padding_1, STRIDE_1, HEIGHT)
    from_x, in_x = along(x, image_width, padding_2, STRIDE_2, WIDTH)
    places = ()
    insides = ()
    for tap in tl.static_range(DEPTH * HEIGHT):
        line = ((case * image_depth + from_z[tap // HEIGHT]) * image_height + from_y[tap % HEIGHT]) * image_width
        inside = there & in_z[tap // HEIGHT] & in_y[tap % HEIGHT]
        for number in tl.static_range(WIDTH):
            places = places + ((line + from_x[number]) * FEW,)  # type: ignore[assignment]
            insides = insides + (inside & in_x[number],)  # type: ignore[assignment]
    return places, insides


@triton.jit
def gathered(image, places, insides, first: tl.constexpr, TAPS: tl.constexpr, PART: tl.constexpr):
    """(BLOCK, PART) values of the taps from `first` on, 0 outside of the image and beyond the last one."""
    values = ()
    for tap in tl.static_range(PART):
        if first + tap < TAPS:
            value = tl.load(image + places[first + tap], insides[first + tap], other=0.0)
        else:
            value = tl.zeros_like(places[0]).to(image.dtype.element_ty)
        values = values + (value,)  # type: ignore[assignment]
    # Half with half, so that the last axis of all is that of neighbouring taps.
    return tl.reshape(joined(values, PART // 2), (places[0].shape[0], PART))


@triton.jit
def joined(values, half: tl.constexpr):
    """2 * half tensors as one, with an axis of two for each halving."""
    pairs = ()
    for place in tl.static_range(half):
        pairs = pairs + (tl.join(values[place], values[place + half]),)  # type: ignore[assignment]
    if half > 1:
        return joined(pairs, half // 2)
    else:
        return pairs[0]  # type: ignore[misc]


@triton.jit
def convolve_kernel(
    image, filters, result, voxels, channels, depth, height, width, image_depth, image_height, image_width,
    padding_0, padding_1, padding_2, STRIDE_0: tl.constexpr, STRIDE_1: tl.constexpr, STRIDE_2: tl.constexpr,
    DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr, TAPS: tl.constexpr,
    PART: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result[v, c] = sum over taps and few channels of filters[c, few, tap] * image[place of the tap for v, few]."""
    voxel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    places, insides = covered(
        voxel, voxel < voxels, depth, height, width, image_depth, image_height, image_width, padding_0, padding_1,
        padding_2, STRIDE_0, STRIDE_1, STRIDE_2, DEPTH, HEIGHT, WIDTH, FEW,
    )  # fmt: skip
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    sums = tl.zeros((COLUMNS, BLOCK), tl.float32)
    for first in tl.static_range(0, TAPS, PART):
        tap = first + tl.arange(0, PART)[None, :]
        known = (channel < channels) & (tap < DEPTH * HEIGHT * WIDTH)
        for few in tl.static_range(FEW):
            values = gathered(image + few, places, insides, first, DEPTH * HEIGHT * WIDTH, PART)
            factors = tl.load(filters + (channel * FEW + few) * (DEPTH * HEIGHT * WIDTH) + tap, known, other=0.0)
            sums = tl.dot(factors, tl.trans(values), sums)
    target = result + voxel[None, :].to(tl.int64) * channels + channel
    tl.store(target, sums.to(result.dtype.element_ty), (voxel < voxels)[None, :] & (channel < channels))


@triton.jit
def filters_kernel(
    image, gradient, result, voxels, channels, steps, depth, height, width, image_depth, image_height, image_width,
    padding_0, padding_1, padding_2, FIRST: tl.constexpr, STRIDE_0: tl.constexpr, STRIDE_1: tl.constexpr,
    STRIDE_2: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, FEW: tl.constexpr,
    PART: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result[program, c, few, tap] = sum over its voxels of gradient[v, c] * image[place of the tap for v, few].

    Of PART taps from FIRST on. Neighbouring programs have the same voxels and another of the few channels.
    """
    program, few = tl.program_id(0) // FEW, tl.program_id(0) % FEW
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[:, None]
    sums = tl.zeros((COLUMNS, PART), tl.float32)
    for step in range(steps):
        voxel = (program * steps + step) * BLOCK + tl.arange(0, BLOCK)
        there = voxel < voxels
        places, insides = covered(
            voxel, there, depth, height, width, image_depth, image_height, image_width, padding_0, padding_1,
            padding_2, STRIDE_0, STRIDE_1, STRIDE_2, DEPTH, HEIGHT, WIDTH, FEW,
        )  # fmt: skip
        values = gathered(image + few, places, insides, FIRST, DEPTH * HEIGHT * WIDTH, PART)
        place = gradient + voxel[None, :].to(tl.int64) * channels + channel
        sums = tl.dot(tl.load(place, there[None, :] & (channel < channels), other=0.0), values, sums)
    tap = FIRST + tl.arange(0, PART)[None, :]
    target = result + ((program * channels + channel) * FEW + few) * (DEPTH * HEIGHT * WIDTH) + tap
    tl.store(target, sums, (channel < channels) & (tap < DEPTH * HEIGHT * WIDTH))


@triton.jit
def narrow_kernel(
    image, filters, bias, result, voxels, channels, few, chunks, lines, depth, height, width, image_depth,
    image_height, image_width, padding_0, padding_1, padding_2, STRIDE_0: tl.constexpr, STRIDE_1: tl.constexpr,
    STRIDE_2: tl.constexpr, DEPTH: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TRANSPOSED: tl.constexpr,
    BIAS: tl.constexpr, PART: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """result[v, f] = bias[f] + sum over taps and channels of image[place of the tap for v, c] * filters[tap, c, f].

    lines: those of the kernel along the last axis, times chunks of PART channels.
    """
    voxel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    case, z, y, x = split(voxel, depth, height, width)
    column = tl.arange(0, COLUMNS)[None, :]
    sums = tl.zeros((BLOCK, COLUMNS), tl.float32)
    for part in range(lines):
        line = part // chunks
        channel = part % chunks * PART + tl.arange(0, PART)
        from_z, in_z = axis(z, image_depth, line // HEIGHT, padding_0, STRIDE_0, TRANSPOSED)
        from_y, in_y = axis(y, image_height, line % HEIGHT, padding_1, STRIDE_1, TRANSPOSED)
        begin, inside = ((case * image_depth + from_z) * image_height + from_y) * image_width, in_z & in_y
        known = (channel < channels)[:, None] & (column < few)
        for number in tl.static_range(WIDTH):
            from_x, in_x = axis(x, image_width, number, padding_2, STRIDE_2, TRANSPOSED)
            there = (inside & in_x & (voxel < voxels))[:, None] & (channel < channels)[None, :]
            place = image + (begin + from_x).to(tl.int64)[:, None] * channels + channel[None, :]
            factor = filters + ((line * WIDTH + number) * channels + channel)[:, None] * few + column
            sums = tl.dot(tl.load(place, there, other=0.0), tl.load(factor, known, other=0.0), sums)
    if BIAS:
        sums += tl.load(bias + column, column < few, other=0.0).to(tl.float32)
    target = result + voxel[:, None] * few + column
    tl.store(target, sums.to(result.dtype.element_ty), (voxel < voxels)[:, None] & (column < few))


def convolve(image: Tensor, filters: Tensor, result: Tensor, geometry: Geometry) -> None:
    """image: (B * D * H * W, few) rows, filters: (C, few, taps), result: (B * d * h * w, C), all of one type."""
    (channels, few, taps), voxels = filters.shape, len(result)
    columns = _columns(channels)
    with torch.cuda.device_of(image):
        convolve_kernel[(triton.cdiv(voxels, _ROWS), triton.cdiv(channels, columns))](
            image, filters, result, voxels, channels, *_numbers(geometry), FEW=few, COLUMNS=columns, BLOCK=_ROWS,
            **_shape(geometry), **_parts(taps), num_warps=4,
        )  # fmt: skip


def outer_products(image: Tensor, gradient: Tensor, geometry: Geometry) -> Tensor:
    """(C, few, taps) float32. image: (B * D * H * W, few) rows. gradient: (B * d * h * w, C)."""
    (voxels, channels), few = gradient.shape, image.shape[1]
    taps = geometry.kernel[0] * geometry.kernel[1] * geometry.kernel[2]
    columns, parts = _columns(channels), _parts(taps)
    steps = triton.cdiv(voxels, _ROWS * _PROGRAMS)
    programs = triton.cdiv(voxels, _ROWS * steps)
    sums = torch.empty(programs, channels, few, taps, device=image.device)
    with torch.cuda.device_of(image):
        for first in range(0, parts["TAPS"], parts["PART"]):
            filters_kernel[(programs * few, triton.cdiv(channels, columns))](
                image, gradient, sums, voxels, channels, steps, *_numbers(geometry), FIRST=first, FEW=few,
                PART=parts["PART"], COLUMNS=columns, BLOCK=_ROWS, **_shape(geometry), num_warps=4, num_stages=1,
            )  # fmt: skip
    return sums.sum(0)


def narrow(
    image: Tensor, filters: Tensor, bias: Tensor | None, result: Tensor, geometry: Geometry, *, transposed: bool
) -> None:
    """A convolution to few channels, or a transposed one.

    image: (B * D * H * W, C) rows, filters: (taps, C, few), result: (B * d * h * w, few), all of one type.
    """
    taps, channels, few = filters.shape
    part = _columns(channels)
    chunks = triton.cdiv(channels, part)
    # A line of rows must fit into the shared memory of small cards twice; rows that are not read in long words take
    # many registers.
    stages, block = 2 if geometry.kernel[2] <= 3 else 1, _ROWS if channels % 16 == 0 else _ROWS // 2
    with torch.cuda.device_of(image):
        narrow_kernel[(triton.cdiv(len(result), block),)](
            image, filters, bias, result, len(result), channels, few, chunks, taps // geometry.kernel[2] * chunks,
            *_numbers(geometry), TRANSPOSED=transposed, BIAS=bias is not None, PART=part, COLUMNS=16, BLOCK=block,
            **_shape(geometry), num_warps=4, num_stages=stages,
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
    strides = {f"STRIDE_{number}": stride for number, stride in enumerate(geometry.stride)}
    return strides | dict(zip(("DEPTH", "HEIGHT", "WIDTH"), geometry.kernel, strict=True))


def _parts(taps: int) -> dict[str, int]:
    """Taps with those of zeros, and how many of them are multiplied at once."""
    padded = max(16, power_of_two(taps))
    return {"TAPS": padded, "PART": min(padded, _TAPS)}


def _columns(channels: int) -> int:
    return min(_WIDTH, max(16, power_of_two(channels)))
