"""Splits a volume into bands that are processed one after another, where the scores of all of it need too much memory.

Windows go along the axis with the most of them, and what waits for the next one has the size of the volume's cross
section. A band is a part of the cross section over the whole length. Windows across a border are run for both bands, so
that results are the same; there are only as many bands as memory requires.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product
from math import prod

import torch

from hasten.cache.memory import available_memory
from hasten.config.schema import Triple
from hasten.prediction.blend import window_starts
from hasten.prediction.windows import Windows, slow_axis

Box = tuple[slice, slice, slice]
_FEW_PLANES = 4
"""Additional planes of scores needed to decide a layer."""


def bands(shape: Triple, windows: Windows, classes: int, budget: int, *, halo: int) -> list[Box]:
    """Boxes that cover a volume of (D, H, W) voxels, with the fewest windows whose scores fit into the budget.

    If none fit, those with the least memory. budget: bytes. halo: voxels behind a border that its band needs, too,
    1 where scores are interpolated (and wait for whole layers), else 0. classes: 0 if unknown gives one box.
    """
    slow = slow_axis(shape, windows)
    row, column = (axis for axis in range(3) if axis != slow)
    whole = tuple([slice(0, side)] for side in shape)
    size = partial(_bytes, shape, windows, classes, slow, halo)
    if size(shape) <= budget:
        return [(whole[0][0], whole[1][0], whole[2][0])]
    candidates = []
    choices = [_splits(shape[axis], windows.window[axis], windows.overlap[axis], halo) for axis in (row, column)]
    for (rows, row_windows), (columns, column_windows) in product(*choices):
        parts = [*whole]
        parts[row], parts[column] = rows, columns
        depth, height, width = (max(each.stop - each.start for each in sides) + halo for sides in parts)
        num_bytes = size((min(depth, shape[0]), min(height, shape[1]), min(width, shape[2])))
        candidates.append((max(num_bytes, budget), row_windows * column_windows, len(rows) * len(columns), parts))
    return list(product(*min(candidates, key=lambda each: each[:3])[3]))


def widened(box: Box, shape: Triple) -> Box:
    """`box` with one voxel more behind each side, as far as there are any."""
    d, h, w = (slice(part.start, min(part.stop + 1, side)) for part, side in zip(box, shape, strict=True))
    return d, h, w


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return available_memory()


def _splits(side: int, window: int, overlap: float, halo: int) -> list[tuple[list[slice], int]]:
    """Split a side into 1, 2, 3, ... similar parts, cut where the fewest windows lie; with each split's windows."""
    starts = window_starts(max(side, window), window, overlap)
    reach = max(1, window // 4)

    def across(place: int) -> int:
        return sum(start < place + halo and start + window > place for start in starts)

    candidates = []
    for count in range(1, len(starts) + 1):
        ideal = [round(side * number / count) for number in range(1, count)]
        near = (range(max(1, place - reach), min(side, place + reach + 1)) for place in ideal)
        places = [min(each, key=lambda at: (across(at), abs(at - to))) for each, to in zip(near, ideal, strict=True)]
        if len(set(places)) < len(places):
            break
        cuts = [0, *places, side]
        parts = [slice(first, last) for first, last in pairwise(cuts)]
        candidates.append((parts, len(starts) + sum(across(place) for place in places)))
    return candidates


def _bytes(shape: Triple, windows: Windows, classes: int, slow: int, halo: int, box: Triple) -> int:
    """Peak memory in bytes of the scores of a box of a volume, of a layer as far as it is filled."""
    starts = window_starts(max(shape[slow], windows.window[slow]), windows.window[slow], windows.overlap[slow])
    steps = [later - start for start, later in pairwise(starts)]
    planes = min(windows.window[slow], box[slow])
    waiting = max(0, planes - min(steps)) if steps else 0
    across = [axis for axis in range(3) if axis != slow]
    section = prod(box[axis] for axis in across)
    rows = max(section // box[axis] * min(windows.window[axis], box[axis]) for axis in across)
    sum_bytes = windows.sums.itemsize * (waiting * section + (planes - waiting) * rows)
    layers = 4 * section * (planes - waiting + _FEW_PLANES) if halo else 0
    return classes * (sum_bytes + layers)
