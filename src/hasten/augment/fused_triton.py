# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The kernels of `hasten.augment.fused`: crop, map and nnU-Net's operations on values in at most six launches.

A row is a channel of a sample. Each kernel begins a fixed number of programs for each row, and those of a row that did
not draw its operation end at once. A kernel leaves the statistics that the next one needs as one number for each
program, so that nobody waits for another program. What blur and low resolution change goes back and forth between two
images, and begins in the one from which it ends in the result. Importing this needs Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hasten.augment.read_triton import between, from_centre, mapped, nearest_voxel, three
from hasten.sample.random_triton import normal_of, word_at

_TINY = tl.constexpr(1e-7)
SIDES = ["out_d", "out_h", "out_w"]
"""Arguments that Triton must not specialize: 1 would become a constant, each divisibility by 16 another kernel."""


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
            value = between(
                source, d, h, w, first_d, first_h, first_w, extent_d, extent_h, extent_w, inside, FLAT
            )  # fmt: skip
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
