# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The kernels of `hasten.augment.fused`: crop, map and nnU-Net's operations on values in at most six launches.

A row is a channel of a sample. Each kernel begins a fixed number of programs for each row, and those of a row that did
not draw its operation end at once. A kernel leaves the statistics that the next one needs as one number for each
program, so that nobody waits for another program. What blur and low resolution change goes back and forth between two
images, and begins in the one from which it ends in the result. Importing this needs Triton.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.augment.chain import Batch, Warp
from hasten.augment.draw import Draws
from hasten.augment.noise import VOXEL
from hasten.augment.op import Drawn
from hasten.augment.read import PackedCases
from hasten.augment.read_triton import PADDINGS, between, from_centre, mapped, nearest_voxel, three
from hasten.sample.random import salt_of
from hasten.sample.random_triton import normal_of, signed, word_at

SIDES = ["out_d", "out_h", "out_w"]
"""Arguments that Triton must not specialize: 1 would become a constant, each divisibility by 16 another kernel."""
_BLOCK = 512
_PARTS = 256
"""Programs for each channel of a sample, at most."""
_DEPTH = 16
"""Voxels along D of a program that blurs."""


def launch(
    ops: Sequence[Any],
    drawn: Sequence[Drawn | None],
    warp: Warp,
    key: str,
    label: str,
    cases: Mapping[str, PackedCases],
    draws: Draws,
    flat: bool,
) -> Batch:
    """The image `key`, and the label where it is read by the same kernel, (B, C, D, H, W) each.

    ops, drawn: of each of `KINDS` in `hasten.augment.fused`; None for those that the chain does not have. flat: 2-D.
    """
    noise, blur, _, contrast, low, gamma, second = ops
    place = draws.stages[0][key]
    channels, out, batch_size, device = cases[key].channels, warp.out, len(draws.case), draws.key.device
    rows, voxels = batch_size * channels, math.prod(out)
    image = torch.empty(batch_size, channels, *out, device=device)
    spare = torch.empty_like(image) if blur or low else image
    kinds = cases[label or key].values
    labels = kinds.new_empty((batch_size, 1, *out)) if label else kinds
    result = {key: image, label: labels} if label else {key: image}
    if not image.numel():
        return result
    parts = min(_PARTS, triton.next_power_of_2(triton.cdiv(voxels, _BLOCK)))
    table, low_table = torch.empty(2, rows, 3, parts, device=device)
    moments = torch.empty(2, rows, 5, parts, device=device)
    # The numbers of operations that the chain does not have: not drawn.
    absent = torch.zeros(rows, device=device) if None in ops else table

    def number(place: int, name: str) -> Tensor:
        numbers = drawn[place]
        return absent if numbers is None else _bytes(numbers[name])

    use = [number(place, "use") for place in range(len(ops))]
    shade, stretch = (use[2], number(2, "multiplier")), (use[3], number(3, "multiplier"))
    common: dict[str, Any] = {"CHANNELS": channels, "PARTS": parts, "num_warps": 4, "enable_fp_fusion": False}
    clip, grid = bool(contrast and contrast.preserve_range), (rows * parts,)
    reading, stored = warp.readings[key], cases[key]
    open_kernel[grid](
        _bytes(stored.values), _bytes(kinds), stored.shape.contiguous(), stored.offset.contiguous(), draws.case,
        draws.start.contiguous(), place.linear.contiguous(), place.shift.contiguous(), image, spare, _bytes(labels),
        table, use[0], number(0, "std"), draws.key if noise is None else number(0, "key"), use[1], *shade, use[4],
        signed(salt_of(VOXEL)), noise.mean if noise else 0.0, *warp.size, *out,
        NEAREST=reading.mode == "nearest", PADDING=PADDINGS[reading.padding_mode], FLAT=flat, LABELS=bool(label),
        BLOCK=_BLOCK, **common,
    )  # fmt: skip
    if blur:
        sigma = number(1, "sigma")
        radii = [blur.radius(side) for side in out]
        blur_kernel[grid](
            image, spare, table, use[1], sigma, use[4], *shade, *out, AXES=sigma.shape[-1], RADIUS_D=radii[0],
            RADIUS_H=radii[1], RADIUS_W=radii[2], WIDE=triton.next_power_of_2(2 * max(radii) + 2),
            DEPTH=min(_DEPTH, triton.next_power_of_2(out[0])), BLOCK=_BLOCK // 2, **{**common, "num_warps": 8},
        )  # fmt: skip
    if low:
        zoom = number(4, "zoom")
        low_kernel[grid](
            image, spare, table, low_table, use[4], zoom, *stretch, *out, ZOOMS=zoom.shape[1], AXES=zoom.shape[2],
            HALF=low.half_pixel, CLIP=clip, BLOCK=_BLOCK, **common,
        )  # fmt: skip
    curves = [(use[each], *(number(each, name) for name in ("gamma", "invert", "retain"))) for each in (5, 6)]
    steps = [step for step, op in enumerate((gamma, second)) if op and op.p_retain_stats > 0]
    for step in [*steps, 2] if contrast or gamma or second else []:
        curve_kernel[grid](
            image, table, low_table, moments, use[4], *stretch, *curves[0], *curves[1], voxels, rows, CLIP=clip,
            STEP=step, BLOCK=_BLOCK, **common,
        )  # fmt: skip
    return result


def _bytes(value: Tensor) -> Tensor:
    """`value`, contiguous; booleans as uint8, since Triton has no pointers to booleans."""
    value = value.contiguous()
    return value.view(torch.uint8) if value.dtype == torch.bool else value


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


_TINY = tl.constexpr(1e-7)


@triton.jit
def drawn(use, sample):
    """Whether an operation changes a sample."""
    return tl.load(use + sample) != 0


@triton.jit
def keep_range(lowest, highest, total, table, row, part, PARTS: tl.constexpr):
    """One program's share of the smallest and largest value and the sum of a row. table: (rows, 3, PARTS)."""
    at = table + row * 3 * PARTS + part
    tl.store(at, tl.min(lowest))
    tl.store(at + PARTS, tl.max(highest))
    tl.store(at + 2 * PARTS, tl.sum(total))


@triton.jit
def _range_of(table, row, voxels, PARTS: tl.constexpr):
    """The smallest and largest value and the mean of a row."""
    at = table + row * 3 * PARTS + tl.arange(0, PARTS)
    total = tl.sum(tl.load(at + 2 * PARTS))
    return tl.min(tl.load(at)), tl.max(tl.load(at + PARTS)), total / voxels.to(tl.float32)


@triton.jit
def contrast_of(table, row, sample, use, multiplier, voxels, PARTS: tl.constexpr):
    """Factor, summand and range of `Contrast` for one row; factor 1 and summand 0 where it is not applied."""
    lowest, highest, mean = _range_of(table, row, voxels, PARTS)
    factor = tl.where(drawn(use, sample), tl.load(multiplier + row), 1.0)
    return factor, (1.0 - factor) * mean, lowest, highest


@triton.jit
def stretched_of(value, factor, summand, lowest, highest, CLIP: tl.constexpr):
    """`Contrast`. CLIP: to the range before."""
    value = value * factor + summand
    if CLIP:
        value = tl.minimum(tl.maximum(value, lowest), highest)
    return value


@triton.jit(do_not_specialize=["salt", "size_d", "size_h", "size_w", *SIDES])
def open_kernel(
    values, labels, shapes, offsets, case, starts, linear, shift, image, spare, label, table,
    noise_use, noise_std, noise_key, blur_use, bright_use, bright, low_use,
    salt, noise_mean, size_d, size_h, size_w, out_d, out_h, out_w,
    CHANNELS: tl.constexpr, NEAREST: tl.constexpr, PADDING: tl.constexpr, FLAT: tl.constexpr, LABELS: tl.constexpr,
    PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Crop and map of image and label, noise, and brightness where no blur comes before it.

    As `read_kernel`. LABELS: whether a label of one channel is read at the same places.
    """
    row = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    sample, channel = row // CHANNELS, row % CHANNELS
    voxels = out_d * out_h * out_w
    number = tl.load(case + sample)
    first_d, first_h, first_w = three(starts + sample * 3)
    extent_d, extent_h, extent_w = three(shapes + number * 3)
    volume = extent_d.to(tl.int64) * extent_h * extent_w
    first = tl.load(offsets + number)
    source = values + first * CHANNELS + channel * volume
    blurred, noisy = drawn(blur_use, sample), drawn(noise_use, sample)
    factor = tl.where(drawn(bright_use, sample) & (blurred == 0), tl.load(bright + row), 1.0)
    std = tl.load(noise_std + sample)
    target = image + row.to(tl.int64) * voxels
    if blurred != drawn(low_use, sample):
        target = spare + row.to(tl.int64) * voxels
    lowest, highest = tl.full((BLOCK,), float("inf"), tl.float32), tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    begin = part * BLOCK
    while begin < voxels:
        voxel = begin + tl.arange(0, BLOCK)
        inside = voxel < voxels
        at_d, at_h, at_w = from_centre(voxel, out_d, out_h, out_w)
        d, h, w = mapped(
            at_d, at_h, at_w, linear + sample * 9, shift + sample * 3, size_d, size_h, size_w,
            first_d, first_h, first_w, extent_d, extent_h, extent_w, PADDING,
        )  # fmt: skip
        if NEAREST or LABELS:
            in_case, index = nearest_voxel(d, h, w, first_d, first_h, first_w, extent_d, extent_h, extent_w)
        if LABELS:
            own = inside & (channel == 0)
            kind = tl.load(labels + first + index, own & in_case, other=0)
            tl.store(label + sample.to(tl.int64) * voxels + voxel, kind, own)
        if NEAREST:
            value = tl.load(source + index, inside & in_case, other=0).to(tl.float32)
        else:
            value = between(source, d, h, w, first_d, first_h, first_w, extent_d, extent_h, extent_w, inside, FLAT)
        if noisy:
            counter = channel * voxels + voxel
            value += noise_mean + std * normal_of(word_at(noise_key + sample * 2, salt, counter))
        value *= factor
        tl.store(target + voxel, value, inside)
        lowest = tl.minimum(lowest, tl.where(inside, value, float("inf")))
        highest = tl.maximum(highest, tl.where(inside, value, float("-inf")))
        total += tl.where(inside, value, 0.0)
        begin += PARTS * BLOCK
    keep_range(lowest, highest, total, table, row, part, PARTS)


@triton.jit
def _joined(count, mean, square):
    """Count, mean and sum of squares about it of parts, each with its own."""
    whole = tl.sum(count)
    middle = tl.sum(count * mean) / tl.maximum(whole, 1.0)
    away = mean - middle
    return whole, middle, tl.sum(square + count * away * away)


@triton.jit
def _welford(value, inside, count, mean, square):
    """One more value for each of the running means and sums of squares about them. count: with it."""
    away = tl.where(inside, value - mean, 0.0)
    mean += away / tl.maximum(count, 1.0)
    return mean, square + away * (value - mean)


@triton.jit
def _keep_moments(count, mean, square, power_mean, power_square, at, PARTS: tl.constexpr):
    whole, middle, squares = _joined(count, mean, square)
    _, power_middle, power_squares = _joined(count, power_mean, power_square)
    tl.store(at, whole)
    tl.store(at + PARTS, middle)
    tl.store(at + 2 * PARTS, squares)
    tl.store(at + 3 * PARTS, power_middle)
    tl.store(at + 4 * PARTS, power_squares)


@triton.jit
def _power(value, origin, slope, gamma):
    # Rounding may leave a value below the least one, and a logarithm would make it NaN.
    unit = tl.maximum((value - origin) * slope, 0.0)
    return unit, tl.exp2(tl.log2(unit) * gamma)


@triton.jit
def _straight(lowest, highest, inverted):
    """Origin and slope that take a range to [0, 1], or backward to it."""
    slope = 1.0 / tl.maximum(highest - lowest, _TINY)
    return tl.where(inverted, highest, lowest), tl.where(inverted, -slope, slope)


@triton.jit
def _back(lowest, highest, inverted, retained, moments, STATS: tl.constexpr, PARTS: tl.constexpr):
    """Middle, scale and summand that take a power in [0, 1] back to the range of values.

    moments: of the row; STATS: whether they are there.
    """
    span = highest - lowest
    middle, scale, mean = span * 0.0, span, span * 0.0
    if retained & STATS:
        at = moments + tl.arange(0, PARTS)
        count = tl.load(at)
        whole, before, square = _joined(count, tl.load(at + PARTS), tl.load(at + 2 * PARTS))
        _, middle, power = _joined(count, tl.load(at + 3 * PARTS), tl.load(at + 4 * PARTS))
        least = tl.maximum(whole - 1.0, 1.0)
        wide = tl.maximum(span, _TINY)
        scale = span * (tl.sqrt(square / least) * wide) / tl.maximum(tl.sqrt(power / least) * span, _TINY)
        mean = wide * before
    sign = tl.where(inverted, -1.0, 1.0)
    return middle, sign * scale, tl.where(inverted, highest, lowest) + sign * mean


@triton.jit
def _bent(value, origin, slope, gamma, middle, scale, rest):
    _, power = _power(value, origin, slope, gamma)
    return (power - middle) * scale + rest


@triton.jit
def _curve_of(use, gamma, invert, retain, sample, row):
    """Whether a row is changed, whether its statistics are kept, whether it is inverted, and its exponent."""
    exponent = tl.load(gamma + row)
    bent = drawn(use, sample) & (exponent != 1.0)
    return bent, bent & drawn(retain, row), drawn(invert, row), exponent


@triton.jit(do_not_specialize=["voxels", "rows"])
def curve_kernel(
    image, table, low_table, moments, low_use, contrast_use, multiplier,
    use, gamma, invert, retain, use_2, gamma_2, invert_2, retain_2, voxels, rows,
    CHANNELS: tl.constexpr, CLIP: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Contrast, where no low resolution has taken it in, and two `Gamma`, in place: each takes a voxel by itself.

    STEP 0 and 1: the moments before and after the power of the first or second gamma; 2: the result. The range after a
    curve that rises follows from the range before it. moments: (2, rows, 5, PARTS).
    """
    row = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    sample = row // CHANNELS
    low = drawn(low_use, sample)
    stretched = drawn(contrast_use, sample) & (low == 0)
    bent, kept, inverted, exponent = _curve_of(use, gamma, invert, retain, sample, row)
    bent_2, kept_2, inverted_2, exponent_2 = _curve_of(use_2, gamma_2, invert_2, retain_2, sample, row)
    wanted = (stretched | bent | bent_2) if STEP == 2 else (kept if STEP == 0 else kept_2)
    if wanted == 0:
        return
    factor, summand, least, most = contrast_of(table, row, sample, contrast_use, multiplier, voxels, PARTS)
    if low:
        least, most, _ = _range_of(low_table, row, voxels, PARTS)
    factor, summand = tl.where(stretched, factor, 1.0), tl.where(stretched, summand, 0.0)
    one = stretched_of(least, factor, summand, least, most, CLIP)
    other = stretched_of(most, factor, summand, least, most, CLIP)
    lowest, highest = tl.minimum(one, other), tl.maximum(one, other)
    own = moments + row * 5 * PARTS
    origin, slope = _straight(lowest, highest, inverted)
    middle, scale, rest = _back(lowest, highest, inverted, kept, own, STEP > 0, PARTS)
    if bent:
        lowest = _bent(lowest, origin, slope, exponent, middle, scale, rest)
        highest = _bent(highest, origin, slope, exponent, middle, scale, rest)
    own += rows * 5 * PARTS
    origin_2, slope_2 = _straight(lowest, highest, inverted_2)
    middle_2, scale_2, rest_2 = _back(lowest, highest, inverted_2, kept_2, own, STEP > 1, PARTS)
    count, mean, square = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    power_mean, power_square = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    image += row.to(tl.int64) * voxels
    begin = part * BLOCK
    while begin < voxels:
        voxel = begin + tl.arange(0, BLOCK)
        inside = voxel < voxels
        value = stretched_of(tl.load(image + voxel, inside, other=0.0), factor, summand, least, most, CLIP)
        if STEP == 0:
            unit, power = _power(value, origin, slope, exponent)
        else:
            if bent:
                value = _bent(value, origin, slope, exponent, middle, scale, rest)
            if STEP == 1:
                unit, power = _power(value, origin_2, slope_2, exponent_2)
            elif bent_2:
                value = _bent(value, origin_2, slope_2, exponent_2, middle_2, scale_2, rest_2)
        if STEP == 2:
            tl.store(image + voxel, value, inside)
        else:
            count += inside.to(tl.float32)
            mean, square = _welford(unit, inside, count, mean, square)
            power_mean, power_square = _welford(power, inside, count, power_mean, power_square)
        begin += PARTS * BLOCK
    if STEP < 2:
        at = moments + (STEP * rows + row) * 5 * PARTS + part
        _keep_moments(count, mean, square, power_mean, power_square, at, PARTS)
