# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""Crop, map and interpolation as one Triton kernel, instead of some 70 of torch's in `hasten.augment.read`.

Coordinates are computed where they are used, in the order of `coordinates_of` and without fused multiply-adds, so that
both ways give the same voxels. A neighbour whose weight is 0 is not read: a flip or a shift by whole voxels reads each
voxel once. Importing this needs Triton; see `hasten.kernels.use.triton_runs`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.augment.maps import Map
from hasten.config.schema import Triple

_BLOCK = 512
"""Voxels of a program: four for each of 128 threads."""
PADDINGS = {"": 0, "zeros": 0, "border": 1, "reflection": 2}


@triton.jit
def _coordinate(linear, shift, at_d, at_h, at_w, size):
    """`coordinates_of` along one axis. linear, shift: its row and its number of the sample."""
    start = tl.load(shift) + (size - 1).to(tl.float32) * 0.5
    plane = tl.load(linear) * at_d + start
    return plane + tl.load(linear + 1) * at_h + tl.load(linear + 2) * at_w


@triton.jit
def _bounded(coordinate, start, extent, PADDING: tl.constexpr):
    """`bounded` of `hasten.augment.read`."""
    if PADDING != 0:
        first = -start.to(tl.float32)
        length = extent.to(tl.float32)
        if PADDING == 2:
            period = 2 * length
            beyond = tl.abs(coordinate - (first - 0.5))
            # The remainder is exact; the division may round over a whole number.
            count = tl.floor(beyond / period)
            rest = beyond - count * period
            rest = tl.where(rest < 0, beyond - (count - 1) * period, rest)
            rest = tl.where(rest >= period, beyond - (count + 1) * period, rest)
            coordinate = first - 0.5 + tl.minimum(rest, period - rest)
        coordinate = tl.minimum(tl.maximum(coordinate, first), first + length - 1)
    return coordinate


@triton.jit
def _neighbour(coordinate, start, extent, NUMBER: tl.constexpr):
    """Weight and place of the lower (0) or upper (1) voxel along an axis: `_neighbours` of `hasten.sample.gather`."""
    whole = tl.floor(coordinate)
    part = coordinate - whole
    place = whole.to(tl.int32) + start + NUMBER
    share = part
    if NUMBER == 0:
        share = 1.0 - part
    weight = tl.where((place >= 0) & (place < extent), share, 0.0)
    return weight, tl.minimum(tl.maximum(place, 0), extent - 1)


@triton.jit
def _nearest(coordinate, start, extent):
    place = tl.floor(coordinate + 0.5).to(tl.int32) + start
    return (place >= 0) & (place < extent), tl.minimum(tl.maximum(place, 0), extent - 1)


@triton.jit
def between(channel, d, h, w, first_d, first_h, first_w, extent_d, extent_h, extent_w, inside, FLAT: tl.constexpr):
    """One channel between its neighbouring voxels, summed up as `gather_flat` of `hasten.sample.gather` does."""
    total = tl.zeros_like(w)
    for number_d in tl.static_range(1 if FLAT else 2):
        weight_d, place_d = _neighbour(d, first_d, extent_d, number_d)
        for number_h in tl.static_range(2):
            weight_h, place_h = _neighbour(h, first_h, extent_h, number_h)
            for number_w in tl.static_range(2):
                weight_w, place_w = _neighbour(w, first_w, extent_w, number_w)
                weight = weight_d * weight_h * weight_w
                index = (place_d * extent_h + place_h) * extent_w + place_w
                value = tl.load(channel + index, inside & (weight != 0), other=0)
                total += value.to(tl.float32) * weight
    return total


@triton.jit
def from_centre(voxel, out_d, out_h, out_w):
    """Voxels of an output along each axis, counted from its centre."""
    row = voxel // out_w
    at_d = (row // out_h).to(tl.float32) - (out_d - 1).to(tl.float32) * 0.5
    at_h = (row % out_h).to(tl.float32) - (out_h - 1).to(tl.float32) * 0.5
    at_w = (voxel % out_w).to(tl.float32) - (out_w - 1).to(tl.float32) * 0.5
    return at_d, at_h, at_w


@triton.jit
def three(numbers):
    """Three int64 numbers in a row as int32."""
    return tl.load(numbers).to(tl.int32), tl.load(numbers + 1).to(tl.int32), tl.load(numbers + 2).to(tl.int32)


@triton.jit
def mapped(
    at_d, at_h, at_w, linear, shift, size_d, size_h, size_w, first_d, first_h, first_w, extent_d, extent_h, extent_w,
    PADDING: tl.constexpr,
):  # fmt: skip
    """Coordinates in a case. linear, shift: of the sample."""
    d = _bounded(_coordinate(linear, shift, at_d, at_h, at_w, size_d), first_d, extent_d, PADDING)
    h = _bounded(_coordinate(linear + 3, shift + 1, at_d, at_h, at_w, size_h), first_h, extent_h, PADDING)
    w = _bounded(_coordinate(linear + 6, shift + 2, at_d, at_h, at_w, size_w), first_w, extent_w, PADDING)
    return d, h, w


@triton.jit
def nearest_voxel(d, h, w, first_d, first_h, first_w, extent_d, extent_h, extent_w):
    """Whether a place lies in the case, and the voxel there."""
    in_d, place_d = _nearest(d, first_d, extent_d)
    in_h, place_h = _nearest(h, first_h, extent_h)
    in_w, place_w = _nearest(w, first_w, extent_w)
    return in_d & in_h & in_w, (place_d * extent_h + place_h) * extent_w + place_w


# Sides are not specialized: Triton would make 1 a constant and compile a kernel for each divisibility by 16.
@triton.jit(do_not_specialize=["size_d", "size_h", "size_w", "out_d", "out_h", "out_w"])
def read_kernel(
    values, shapes, offsets, case, starts, linear, shift, out,
    size_d, size_h, size_w, out_d, out_h, out_w,
    CHANNELS: tl.constexpr, NEAREST: tl.constexpr, PADDING: tl.constexpr, FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out (B, CHANNELS, D, H, W). FLAT: bilinear in H and W. All but the first place in a case or sample is in 32 bits,
    as a case holds fewer than 2**31 voxels."""
    voxels = out_d * out_h * out_w
    blocks = tl.cdiv(voxels, BLOCK)
    sample = tl.program_id(0) // blocks
    voxel = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = voxel < voxels
    at_d, at_h, at_w = from_centre(voxel, out_d, out_h, out_w)
    number = tl.load(case + sample)
    first_d, first_h, first_w = three(starts + sample * 3)
    extent_d, extent_h, extent_w = three(shapes + number * 3)
    volume = extent_d.to(tl.int64) * extent_h * extent_w
    d, h, w = mapped(
        at_d, at_h, at_w, linear + sample * 9, shift + sample * 3, size_d, size_h, size_w,
        first_d, first_h, first_w, extent_d, extent_h, extent_w, PADDING,
    )  # fmt: skip
    base = values + tl.load(offsets + number) * CHANNELS
    target = out + sample.to(tl.int64) * CHANNELS * voxels + voxel
    if NEAREST:
        in_case, index = nearest_voxel(d, h, w, first_d, first_h, first_w, extent_d, extent_h, extent_w)
        for channel in range(CHANNELS):
            value = tl.load(base + channel * volume + index, inside & in_case, other=0)
            tl.store(target + channel * voxels.to(tl.int64), value, inside)
    else:
        for channel in range(CHANNELS):
            total = between(
                base + channel * volume, d, h, w, first_d, first_h, first_w, extent_d, extent_h, extent_w, inside, FLAT
            )
            tl.store(target + channel * voxels.to(tl.int64), total, inside)


def read_by_kernel(
    values: Tensor,
    shape: Tensor,
    offset: Tensor,
    channels: int,
    case: Tensor,
    start: Tensor,
    place: Map,
    size: Triple,
    out: Triple,
    *,
    mode: str,
    padding_mode: str,
    spatial_dims: int,
) -> Tensor:
    """(B, channels, *out), as `read_mapped` of `hasten.augment.read` gives it.

    But a voxel of weight 0 counts as 0 where it is not finite. values, shape, offset, channels: as in `PackedCases`, on
    a GPU.
    """
    nearest = mode == "nearest"
    output = values.new_empty((case.shape[0], channels, *out), dtype=values.dtype if nearest else torch.float32)
    if output.numel() == 0:
        return output
    # Triton has no pointers to booleans.
    stored, target = (each.view(torch.uint8) if each.dtype == torch.bool else each for each in (values, output))
    linear, shift = place.linear.contiguous(), place.shift.contiguous()
    programs = case.shape[0] * triton.cdiv(out[0] * out[1] * out[2], _BLOCK)
    read_kernel[(programs,)](
        stored, shape.contiguous(), offset.contiguous(), case.contiguous(), start.contiguous(), linear, shift,
        target, *size, *out,
        CHANNELS=channels, NEAREST=nearest, PADDING=PADDINGS[padding_mode], FLAT=spatial_dims == 2,
        BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return output
