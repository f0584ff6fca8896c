# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The kernels of `hasten.augment.fused` that mix voxels with their neighbours: blur and low resolution.

Importing this needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hasten.augment.fused_triton import SIDES, contrast_of, drawn, keep_range, stretched_of


@triton.jit
def _height(distance, sigma):
    """Weight of `_sampled` in `hasten.augment.smooth`, before weights are made to sum to 1."""
    ratio = distance / tl.maximum(sigma, 1e-3)
    return tl.where(tl.abs(distance) - 0.25 <= 3.0 * tl.maximum(sigma, 0.1), tl.exp(-0.5 * ratio * ratio), 0.0)


@triton.jit
def _weights(sigma, RADIUS: tl.constexpr, WIDE: tl.constexpr):
    """The sum of the weights at -RADIUS ... RADIUS. WIDE: a power of two above 2 * RADIUS."""
    distance = tl.arange(0, WIDE) - RADIUS
    return tl.sum(tl.where(distance <= RADIUS, _height(distance.to(tl.float32), sigma), 0.0))


@triton.jit
def _reflected(at, side):
    """Places reflected into the axis, as for a blur; those that no filter reads are clamped."""
    at = tl.abs(at)
    at = tl.where(at >= side, 2 * (side - 1) - at, at)
    return tl.minimum(tl.maximum(at, 0), side - 1)


@triton.jit(do_not_specialize=SIDES)
def blur_kernel(
    image, spare, table, blur_use, sigma, low_use, bright_use, bright, out_d, out_h, out_w,
    CHANNELS: tl.constexpr, AXES: tl.constexpr, RADIUS_D: tl.constexpr, RADIUS_H: tl.constexpr, RADIUS_W: tl.constexpr,
    WIDE: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`Blur` along all axes, and the brightness after it. sigma: (rows, AXES).

    A program keeps DEPTH voxels along D for each of BLOCK in the plane, and adds a plane that is filtered along H and W
    to all of them: a voxel is loaded about twice (2 * RADIUS + 1)^2 times instead of (2 * RADIUS + 1)^3, and nothing is
    stored between the axes.
    """
    row = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    sample = row // CHANNELS
    if tl.load(blur_use + sample) == 0:
        return
    plane = out_h * out_w
    base = row.to(tl.int64) * out_d * plane
    source, target = spare + base, image + base
    if drawn(low_use, sample):
        source, target = image + base, spare + base
    factor = tl.where(drawn(bright_use, sample), tl.load(bright + row), 1.0)
    sigma += row * AXES + AXES - 1
    sigma_w, sigma_h = tl.load(sigma), tl.load(sigma - 1)
    sigma_d = sigma_w
    if AXES == 3:
        sigma_d = tl.load(sigma - 2)
    sum_d = _weights(sigma_d, RADIUS_D, WIDE)
    factor /= _weights(sigma_h, RADIUS_H, WIDE) * _weights(sigma_w, RADIUS_W, WIDE)
    across = tl.cdiv(plane, BLOCK)
    lowest, highest = tl.full((BLOCK,), float("inf"), tl.float32), tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    tile = part
    while tile < tl.cdiv(out_d, DEPTH) * across:
        at_d = tile // across * DEPTH + tl.arange(0, DEPTH)
        voxel = tile % across * BLOCK + tl.arange(0, BLOCK)
        at_h, at_w = voxel // out_w, voxel % out_w
        value = tl.zeros((DEPTH, BLOCK), tl.float32)
        for number in range(DEPTH + 2 * RADIUS_D):
            d = tile // across * DEPTH + number - RADIUS_D
            flat = tl.zeros((BLOCK,), tl.float32)
            for tap_h in tl.static_range(2 * RADIUS_H + 1):
                line = source + (_reflected(d, out_d) * out_h + _reflected(at_h + (tap_h - RADIUS_H), out_h)) * out_w
                mixed = tl.zeros((BLOCK,), tl.float32)
                for tap_w in tl.static_range(2 * RADIUS_W + 1):
                    near = tl.load(line + _reflected(at_w + (tap_w - RADIUS_W), out_w), voxel < plane, other=0.0)
                    mixed += near * _height(tl.full((1,), tap_w - RADIUS_W, tl.float32), sigma_w)
                flat += mixed * _height(tl.full((1,), tap_h - RADIUS_H, tl.float32), sigma_h)
            apart = d - at_d
            weight = tl.where(tl.abs(apart) <= RADIUS_D, _height(apart.to(tl.float32), sigma_d), 0.0) / sum_d
            value += weight[:, None] * flat[None, :]
        value *= factor
        inside = (at_d < out_d)[:, None] & (voxel < plane)[None, :]
        tl.store(target + (at_d[:, None] * plane + voxel[None, :]), value, inside)
        lowest = tl.minimum(lowest, tl.min(tl.where(inside, value, float("inf")), axis=0))
        highest = tl.maximum(highest, tl.max(tl.where(inside, value, float("-inf")), axis=0))
        total += tl.sum(tl.where(inside, value, 0.0), axis=0)
        tile += PARTS
    keep_range(lowest, highest, total, table, row, part, PARTS)


@triton.jit
def _nearest_small(at, step, side, HALF: tl.constexpr):
    """`_nearest` of `hasten.augment.lowres`."""
    if HALF:
        place = tl.floor((at + 0.5) * step - 0.5 + 0.5)
    else:
        place = tl.floor(at * step)
    return tl.minimum(place.to(tl.int32), side - 1)


@triton.jit
def _taps(at, zoom, side, HALF: tl.constexpr):
    """`_taps` of `hasten.augment.lowres`, of some voxels of an axis: two places, and the weight of the second."""
    exact = tl.load(zoom).to(tl.float64) * side
    whole = tl.floor(exact + 0.5)
    # Halves go to the even number.
    even = tl.floor(whole * 0.5) * 2.0 == whole
    whole = tl.maximum(tl.where((whole - exact == 0.5) & (even == 0), whole - 1.0, whole), 1.0)
    small = whole.to(tl.float32)
    place = tl.maximum((at.to(tl.float32) + 0.5) * (whole / side).to(tl.float32) - 0.5, 0.0)
    before = tl.minimum(tl.floor(place), small - 1.0)
    after = tl.minimum(before + 1.0, small - 1.0)
    step = (side / whole).to(tl.float32)
    return _nearest_small(before, step, side, HALF), _nearest_small(after, step, side, HALF), place - before


@triton.jit
def _one_of(first, second, weight, NUMBER: tl.constexpr):
    if NUMBER == 0:
        return first, 1.0 - weight
    else:
        return second, weight


@triton.jit(do_not_specialize=SIDES)
def low_kernel(
    image, spare, table, low_table, low_use, zoom, contrast_use, multiplier, out_d, out_h, out_w,
    CHANNELS: tl.constexpr, ZOOMS: tl.constexpr, AXES: tl.constexpr, HALF: tl.constexpr, CLIP: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`SimulateLowResolution`, and the contrast before it, from `spare` to `image`. zoom: (B, ZOOMS, AXES)."""
    row = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    sample = row // CHANNELS
    if tl.load(low_use + sample) == 0:
        return
    voxels = out_d * out_h * out_w
    source, target = spare + row.to(tl.int64) * voxels, image + row.to(tl.int64) * voxels
    factor, summand, least, most = contrast_of(table, row, sample, contrast_use, multiplier, voxels, PARTS)
    zoom += (sample * ZOOMS + row % CHANNELS % ZOOMS) * AXES + AXES - 1
    lowest, highest = tl.full((BLOCK,), float("inf"), tl.float32), tl.full((BLOCK,), float("-inf"), tl.float32)
    begin = part * BLOCK
    while begin < voxels:
        voxel = begin + tl.arange(0, BLOCK)
        inside = voxel < voxels
        line = voxel // out_w
        first_w, second_w, weight_w = _taps(voxel % out_w, zoom, out_w, HALF)
        first_h, second_h, weight_h = _taps(line % out_h, zoom - 1, out_h, HALF)
        first_d, second_d, weight_d = line // out_h, line // out_h, tl.zeros((BLOCK,), tl.float32)
        if AXES == 3:
            first_d, second_d, weight_d = _taps(line // out_h, zoom - 2, out_d, HALF)
        value = tl.zeros((BLOCK,), tl.float32)
        for number_d in tl.static_range(AXES - 1):
            d, share_d = _one_of(first_d, second_d, weight_d, number_d)
            for number_h in tl.static_range(2):
                h, share_h = _one_of(first_h, second_h, weight_h, number_h)
                for number_w in tl.static_range(2):
                    w, share_w = _one_of(first_w, second_w, weight_w, number_w)
                    share = share_d * share_h * share_w
                    near = tl.load(source + ((d * out_h + h) * out_w + w), inside & (share != 0), other=0.0)
                    value += stretched_of(near, factor, summand, least, most, CLIP) * share
        tl.store(target + voxel, value, inside)
        lowest = tl.minimum(lowest, tl.where(inside, value, float("inf")))
        highest = tl.maximum(highest, tl.where(inside, value, float("-inf")))
        begin += PARTS * BLOCK
    keep_range(lowest, highest, tl.zeros((BLOCK,), tl.float32), low_table, row, part, PARTS)
