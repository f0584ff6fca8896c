# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The Triton kernels of `normact_triton`; see there.

An image (B, C, voxels) is read in tiles of ROWS voxels and COLUMNS channels of one sample. LAST: channels-last; else
the voxels of a channel lie next to each other. The first element of a tile is found in 64 bits, the others relative to
it in 32. Loops have a length that is known when a kernel is built: it is a power of two, so that few are built.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hasten.kernels.hash import hash_word


@triton.jit
def _place(program, pieces, C: tl.constexpr, COLUMNS: tl.constexpr):
    """Sample, first channel and piece of a program: channels change fastest, so that neighbours share cache lines."""
    blocks: tl.constexpr = (C + COLUMNS - 1) // COLUMNS
    rest = program // blocks
    return rest // pieces, (program % blocks) * COLUMNS, rest % pieces


@triton.jit
def _start(sample, first, row, voxels, C: tl.constexpr, LAST: tl.constexpr):
    """Offset of a tile's first element."""
    if LAST:
        return (sample.to(tl.int64) * voxels + row) * C + first
    return (sample.to(tl.int64) * C + first) * voxels + row


@triton.jit
def _offsets(voxels, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a tile's elements from its start."""
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    if LAST:
        return rows * C + columns
    # A tile of a contiguous image is of one channel.
    return rows + columns


@triton.jit
def _step(voxels, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr):
    """Elements between the starts of two successive tiles."""
    if LAST:
        return ROWS * C
    return ROWS


@triton.jit
def _within(row, first, voxels, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Mask of a tile's elements that exist."""
    rows, columns = row + tl.arange(0, ROWS)[:, None], first + tl.arange(0, COLUMNS)[None, :]
    return (rows < voxels) & (columns < C)


@triton.jit
def _of_channels(values, first, C: tl.constexpr, COLUMNS: tl.constexpr):
    """(1, COLUMNS) float32 of the values (C,)."""
    channels = first + tl.arange(0, COLUMNS)
    return tl.load(values + channels, channels < C, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _slope(slope, number, first, ACT: tl.constexpr, C: tl.constexpr, COLUMNS: tl.constexpr):
    if ACT == 3:
        return _of_channels(slope, first, C, COLUMNS)
    elif ACT == 2:
        return tl.load(slope).to(tl.float32)
    else:
        return number


@triton.jit
def _dropped(normed, seed, start, offsets, least, rest):
    """The dropout of a tile, which depends on the seed and on each element's offset alone: 0, or 1 / `rest` times it.

    least: share of zeros, in 2^-31.
    """
    words = tl.load(seed)
    first = hash_word(words.to(tl.uint32) ^ hash_word(start.to(tl.uint32)))
    second = hash_word((words >> 32).to(tl.uint32) ^ hash_word((start >> 32).to(tl.uint32) + first))
    drawn = hash_word(offsets.to(tl.uint32) ^ first) + second
    return tl.where((drawn >> 1).to(tl.int32) >= least, normed / rest, 0.0)


@triton.jit
def moments_kernel(
    image, partial, voxels, chunks, batch,
    TILES: tl.constexpr, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """partial (2, B, chunks, C): mean and sum of squared deviations of each chunk of TILES tiles."""
    sample, first, chunk = _place(tl.program_id(0), chunks, C, COLUMNS)
    row = chunk.to(tl.int64) * (TILES * ROWS)
    place = image + _start(sample, first, row, voxels, C, LAST)
    offsets = _offsets(voxels, C, LAST, ROWS, COLUMNS)
    # Sums of what is left of a rough mean lose nothing to cancellation, however far from 0 the image is.
    mask = _within(row, first, voxels, C, ROWS, COLUMNS)
    value = tl.load(place + offsets, mask, other=0.0).to(tl.float32)
    rough = tl.sum(value, 0)[None, :] / tl.minimum(voxels - row, ROWS).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    squares = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
        at = row + tile * ROWS
        mask = _within(at, first, voxels, C, ROWS, COLUMNS)
        value = tl.load(place + offsets, mask, other=0.0).to(tl.float32)
        rest = tl.where(mask, value - rough, 0.0)
        total += rest
        squares += rest * rest
        place += _step(voxels, C, LAST, ROWS)
    count = tl.minimum(voxels - row, TILES * ROWS).to(tl.float32)
    sums = tl.sum(total, 0)[None, :]
    mean = rough + sums / count
    deviation = tl.maximum(tl.sum(squares, 0)[None, :] - sums * sums / count, 0.0)
    channels = first + tl.arange(0, COLUMNS)[None, :]
    into = partial + (sample * chunks + chunk) * C + channels
    tl.store(into, mean, channels < C)
    tl.store(into + batch * chunks * C, deviation, channels < C)


@triton.jit
def merge_kernel(
    partial, moments, voxels, size, chunks, batch, eps,
    TURNS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """moments (2, B, C): mean and 1 / sqrt(variance + eps) of each group of WIDTH channels. size: voxels of a chunk."""
    groups: tl.constexpr = C // WIDTH
    sample, first = tl.program_id(0) // groups, (tl.program_id(0) % groups) * WIDTH
    columns = tl.arange(0, COLUMNS)[None, :]
    rows = tl.arange(0, ROWS)[:, None]
    means = partial + sample * chunks * C + first
    deviations = means + batch * chunks * C
    whole = voxels.to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(TURNS):
        start = turn * ROWS
        mask = (start + rows < chunks) & (columns < WIDTH)
        share = tl.minimum(voxels - (start + rows).to(tl.int64) * size, size).to(tl.float32) / whole
        total += tl.where(mask, share * tl.load(means + (start + rows) * C + columns, mask, other=0.0), 0.0)
    mean = tl.sum(tl.sum(total, 0), 0) / WIDTH
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(TURNS):
        start = turn * ROWS
        mask = (start + rows < chunks) & (columns < WIDTH)
        share = tl.minimum(voxels - (start + rows).to(tl.int64) * size, size).to(tl.float32) / whole
        apart = tl.load(means + (start + rows) * C + columns, mask, other=0.0) - mean
        within = tl.load(deviations + (start + rows) * C + columns, mask, other=0.0)
        total += tl.where(mask, within / whole + share * apart * apart, 0.0)
    var = tl.sum(tl.sum(total, 0), 0) / WIDTH
    into = moments + sample * C + first + columns
    nothing = tl.zeros((1, COLUMNS), tl.float32)
    tl.store(into, nothing + mean, columns < WIDTH)
    tl.store(into + batch * C, nothing + 1.0 / tl.sqrt_rn(var + eps), columns < WIDTH)


@triton.jit(do_not_specialize=["least"])
def apply_kernel(
    image, output, moments, weight, bias, slope, number, seed, least, rest, voxels, tiles, batch,
    ACT: tl.constexpr, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The output, from the last tile to the first, as the image's end is still in the cache."""
    sample, first, tile = _place(tl.num_programs(0) - 1 - tl.program_id(0), tiles, C, COLUMNS)
    row = tile.to(tl.int64) * ROWS
    mask = _within(row, first, voxels, C, ROWS, COLUMNS)
    start, offsets = _start(sample, first, row, voxels, C, LAST), _offsets(voxels, C, LAST, ROWS, COLUMNS)
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
        factor = _slope(slope, number, first, ACT, C, COLUMNS)
        normed = tl.where(normed > 0, normed, normed * factor)
    tl.store(output + start + offsets, normed.to(output.dtype.element_ty), mask)


@triton.jit(do_not_specialize=["least"])
def sums_kernel(
    gradient, image, partial, moments, weight, bias, slope, number, seed, least, rest, voxels, chunks, batch,
    ACT: tl.constexpr, TILES: tl.constexpr, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """partial (2 or 3, B, chunks, C): sums of g, g x^ and, for a slope that is a tensor, its gradient.

    g: the gradient before dropout and activation. x^: the normalised image.
    """
    sample, first, chunk = _place(tl.program_id(0), chunks, C, COLUMNS)
    row = chunk.to(tl.int64) * (TILES * ROWS)
    start = _start(sample, first, row, voxels, C, LAST)
    image += start
    gradient += start
    offsets = _offsets(voxels, C, LAST, ROWS, COLUMNS)
    mean = _of_channels(moments + sample * C, first, C, COLUMNS)
    rstd = _of_channels(moments + (batch + sample) * C, first, C, COLUMNS)
    factor = _slope(slope, number, first, ACT, C, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    along = tl.zeros((ROWS, COLUMNS), tl.float32)
    to_slope = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
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
        start += _step(voxels, C, LAST, ROWS)
        image += _step(voxels, C, LAST, ROWS)
        gradient += _step(voxels, C, LAST, ROWS)
    channels = first + tl.arange(0, COLUMNS)[None, :]
    into = partial + (sample * chunks + chunk) * C + channels
    tl.store(into, tl.sum(total, 0)[None, :], channels < C)
    tl.store(into + batch * chunks * C, tl.sum(along, 0)[None, :], channels < C)
    if ACT > 1:
        tl.store(into + 2 * batch * chunks * C, tl.sum(to_slope, 0)[None, :], channels < C)


@triton.jit
def _over_chunks(
    place, chunks,
    TURNS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """(1, COLUMNS) sums of (chunks, C)."""
    columns, rows = tl.arange(0, COLUMNS)[None, :], tl.arange(0, ROWS)[:, None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(TURNS):
        start = turn * ROWS
        mask = (start + rows < chunks) & (columns < WIDTH)
        total += tl.load(place + (start + rows) * C + columns, mask, other=0.0)
    return tl.sum(total, 0)[None, :]


@triton.jit
def totals_kernel(
    partial, sums, means, weight, voxels, chunks, batch,
    LEARNED: tl.constexpr, TURNS: tl.constexpr, C: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """sums (2 or 3, B, C): over the chunks; means (2, B, C): of w g and w g x^ over each group of WIDTH channels."""
    groups: tl.constexpr = C // WIDTH
    sample, first = tl.program_id(0) // groups, (tl.program_id(0) % groups) * WIDTH
    columns = tl.arange(0, COLUMNS)[None, :]
    place, layer = partial + sample * chunks * C + first, batch * chunks * C
    total = _over_chunks(place, chunks, TURNS, C, WIDTH, COLUMNS, ROWS)
    along = _over_chunks(place + layer, chunks, TURNS, C, WIDTH, COLUMNS, ROWS)
    into = sums + sample * C + first + columns
    tl.store(into, total, columns < WIDTH)
    tl.store(into + batch * C, along, columns < WIDTH)
    if LEARNED:
        to_slope = _over_chunks(place + 2 * layer, chunks, TURNS, C, WIDTH, COLUMNS, ROWS)
        tl.store(into + 2 * batch * C, to_slope, columns < WIDTH)
    if weight is not None:
        factor = tl.load(weight + first + columns, columns < WIDTH, other=0.0).to(tl.float32)
        total *= factor
        along *= factor
    count = voxels.to(tl.float32) * WIDTH
    nothing = tl.zeros((1, COLUMNS), tl.float32)
    into = means + sample * C + first + columns
    tl.store(into, nothing + tl.sum(tl.sum(total, 0), 0) / count, columns < WIDTH)
    tl.store(into + batch * C, nothing + tl.sum(tl.sum(along, 0), 0) / count, columns < WIDTH)


@triton.jit(do_not_specialize=["least"])
def gradient_kernel(
    gradient, image, out, moments, means, weight, bias, slope, number, seed, least, rest, voxels, tiles, batch,
    ACT: tl.constexpr, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The image's gradient rstd (w g - mean(w g) - x^ mean(w g x^)), from the last tile to the first."""
    sample, first, tile = _place(tl.num_programs(0) - 1 - tl.program_id(0), tiles, C, COLUMNS)
    row = tile.to(tl.int64) * ROWS
    mask = _within(row, first, voxels, C, ROWS, COLUMNS)
    start, offsets = _start(sample, first, row, voxels, C, LAST), _offsets(voxels, C, LAST, ROWS, COLUMNS)
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
        upstream = tl.where(normed > 0, upstream, upstream * _slope(slope, number, first, ACT, C, COLUMNS))
    if weight is not None:
        upstream *= factor
    through = _of_channels(means + sample * C, first, C, COLUMNS)
    along = _of_channels(means + (batch + sample) * C, first, C, COLUMNS)
    result = (upstream - through - hat * along) * rstd
    tl.store(out + start + offsets, result.to(out.dtype.element_ty), mask)
