# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The Triton kernels of `normact_triton`; see there.

An image (B, C, voxels) is read in tiles of ROWS voxels and COLUMNS channels of one sample. LAST: channels-last; else
the voxels of a channel lie next to each other. The first element of a tile is found in 64 bits, the others relative to
it in 32. Few kernels are built, as each takes 0.1 to 0.3 s: sizes are arguments. FEW is the number of channels where
that is small, so that a tile of whole voxels is known to be contiguous, else 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hasten.kernels.hash import hash_word


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
def _start(sample, first, row, voxels, C, LAST: tl.constexpr):
    """Offset of a tile's first element."""
    if LAST:
        return (sample.to(tl.int64) * voxels + row) * C + first
    return (sample.to(tl.int64) * C + first) * voxels + row


@triton.jit
def _offsets(C, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a tile's elements from its start."""
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    if LAST:
        return rows * C + columns
    # A tile of a contiguous image is of one channel.
    return rows + columns


@triton.jit
def _step(C, LAST: tl.constexpr, ROWS: tl.constexpr):
    """Elements between the starts of two successive tiles."""
    if LAST:
        return ROWS * C
    return ROWS


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
    FEW: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """partial (2, B, chunks, C): mean and sum of squared deviations of each chunk of `per_chunk` tiles."""
    C = _channel_count(channels, FEW)
    sample, first, chunk = _place(tl.program_id(0), chunks, C, COLUMNS)
    row = chunk.to(tl.int64) * (per_chunk * ROWS)
    place = image + _start(sample, first, row, voxels, C, LAST)
    offsets = _offsets(C, LAST, ROWS, COLUMNS)
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
        place += _step(C, LAST, ROWS)
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
    ACT: tl.constexpr, FEW: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The output, from the last tile to the first, as the image's end is still in the cache."""
    C = _channel_count(channels, FEW)
    sample, first, tile = _place(tl.num_programs(0) - 1 - tl.program_id(0), tiles, C, COLUMNS)
    row = tile.to(tl.int64) * ROWS
    mask = _within(row, first, voxels, C, ROWS, COLUMNS)
    start, offsets = _start(sample, first, row, voxels, C, LAST), _offsets(C, LAST, ROWS, COLUMNS)
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
    ACT: tl.constexpr, FEW: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """partial (2 or 3, B, chunks, C): sums of g, g x^ and, for a slope that is a tensor, its gradient.

    g: the gradient before dropout and activation. x^: the normalised image.
    """
    C = _channel_count(channels, FEW)
    sample, first, chunk = _place(tl.program_id(0), chunks, C, COLUMNS)
    row = chunk.to(tl.int64) * (per_chunk * ROWS)
    start = _start(sample, first, row, voxels, C, LAST)
    image += start
    gradient += start
    offsets = _offsets(C, LAST, ROWS, COLUMNS)
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
        start += _step(C, LAST, ROWS)
        image += _step(C, LAST, ROWS)
        gradient += _step(C, LAST, ROWS)
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
    channels, ACT: tl.constexpr, FEW: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The image's gradient rstd (w g - mean(w g) - x^ mean(w g x^)), from the last tile to the first."""
    C = _channel_count(channels, FEW)
    sample, first, tile = _place(tl.num_programs(0) - 1 - tl.program_id(0), tiles, C, COLUMNS)
    row = tile.to(tl.int64) * ROWS
    mask = _within(row, first, voxels, C, ROWS, COLUMNS)
    start, offsets = _start(sample, first, row, voxels, C, LAST), _offsets(C, LAST, ROWS, COLUMNS)
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
