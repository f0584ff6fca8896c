# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""The Triton kernels of `soft_counts_triton`; see there.

Scores (B, C, voxels) are read in tiles of ROWS voxels and COLUMNS classes, the power of two that holds all C, of one
sample. LAST: channels-last; else the voxels of a class lie next to each other.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _start(sample, row, voxels, C: tl.constexpr, LAST: tl.constexpr):
    """Offset of a tile's first element."""
    if LAST:
        return (sample.to(tl.int64) * voxels + row) * C
    return sample.to(tl.int64) * C * voxels + row


@triton.jit
def _offsets(voxels, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Offsets of a tile's elements from its start."""
    rows, columns = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    if LAST:
        return rows * C + columns
    else:
        return rows + columns.to(tl.int64) * voxels


@triton.jit
def _shares(
    place, label, sample, row, voxels, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    IGNORED: tl.constexpr,
):  # fmt: skip
    """The soft-max, its logarithm, and where the target is 1; a voxel that is not there has neither share nor target.

    So has one with the label IGNORED, if that is not None. Another label that is no class makes everything NaN.
    """
    rows, columns = row + tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    there = rows < voxels
    index = tl.load(label + sample.to(tl.int64) * voxels + rows, there, other=0).to(tl.int32)
    score = tl.load(place, there & (columns < C), other=0.0).to(tl.float32)
    if IGNORED is not None:
        there = there & (index != IGNORED)
        index = tl.where(index == IGNORED, 0, index)
    score = tl.where((index < 0) | (index >= C), float("nan"), score)
    score = tl.where(columns < C, score, float("-inf"))
    score -= tl.max(score, 1)[:, None]
    share = tl.exp(score)
    total = tl.sum(share, 1)[:, None]
    return tl.where(there, share / total, 0.0), score - tl.log(total), there & (index == columns)


@triton.jit
def counts_kernel(
    scores, label, partial, voxels, chunks, batch,
    SURPRISED: tl.constexpr, TILES: tl.constexpr, C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, IGNORED: tl.constexpr,
):  # fmt: skip
    """partial (3 or 4, B, chunks, C): hit, predicted, labelled and the surprise of each chunk of TILES tiles."""
    sample, chunk = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    hit = tl.zeros((ROWS, COLUMNS), tl.float32)
    predicted = tl.zeros((ROWS, COLUMNS), tl.float32)
    labelled = tl.zeros((ROWS, COLUMNS), tl.float32)
    surprise = tl.zeros((ROWS, COLUMNS), tl.float32)
    for tile in range(TILES):
        row = (chunk.to(tl.int64) * TILES + tile) * ROWS
        place = scores + _start(sample, row, voxels, C, LAST) + _offsets(voxels, C, LAST, ROWS, COLUMNS)
        share, logarithm, target = _shares(place, label, sample, row, voxels, C, ROWS, COLUMNS, IGNORED)
        hit += tl.where(target, share, 0.0)
        predicted += share
        labelled += target.to(tl.float32)
        if SURPRISED:
            surprise -= tl.where(target, logarithm, 0.0)
    columns = tl.arange(0, COLUMNS)
    into, layer = partial + (sample * chunks + chunk) * C + columns, batch * chunks * C
    tl.store(into, tl.sum(hit, 0), columns < C)
    tl.store(into + layer, tl.sum(predicted, 0), columns < C)
    tl.store(into + 2 * layer, tl.sum(labelled, 0), columns < C)
    if SURPRISED:
        tl.store(into + 3 * layer, tl.sum(surprise, 0), columns < C)


@triton.jit
def scores_gradient_kernel(
    scores, label, out, to_hit, to_predicted, to_surprise, voxels, tiles,
    C: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, IGNORED: tl.constexpr,
):  # fmt: skip
    """The scores' gradient, from the last tile to the first. to_hit, ...: (B, C), the gradients of the counts."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    sample, row = program // tiles, (program % tiles).to(tl.int64) * ROWS
    start, offsets = _start(sample, row, voxels, C, LAST), _offsets(voxels, C, LAST, ROWS, COLUMNS)
    share, _, target = _shares(scores + start + offsets, label, sample, row, voxels, C, ROWS, COLUMNS, IGNORED)
    columns = tl.arange(0, COLUMNS)[None, :]
    at = sample * C + columns
    along = tl.load(to_predicted + at, columns < C, other=0.0)
    along += tl.where(target, tl.load(to_hit + at, columns < C, other=0.0), 0.0)
    common = tl.sum(share * along, 1)[:, None]
    if to_surprise is not None:
        surprise_term = tl.where(target, tl.load(to_surprise + at, columns < C, other=0.0), 0.0)
        result = share * (along - common + tl.sum(surprise_term, 1)[:, None]) - surprise_term
    else:
        result = share * (along - common)
    mask = (row + tl.arange(0, ROWS)[:, None] < voxels) & (columns < C)
    tl.store(out + start + offsets, result.to(out.dtype.element_ty), mask)
