"""Label maps of sections, 2-D images that are too large for memory: read, segmented and written block by block.

Blocks end where windows begin, so that windows lie where they lie on the whole image; those across a border are run for
both sides. Every pixel has the label that the whole image's would have, but for rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.cases.regions import paint
from hasten.cases.section import open_section, read_section_header, write_section
from hasten.cases.slide.open import Slide
from hasten.config.intensity import Scaling, scalings
from hasten.prediction.blend import window_starts
from hasten.prediction.foreground import size_warning
from hasten.prediction.infer import infer_part
from hasten.prediction.model import Model
from hasten.prepare.foreground import Box, box_above, union
from hasten.prepare.intensity import write_scaled, zscore_scale
from hasten.prepare.resample import resampled_shape

log = logging.getLogger(__name__)

_BLOCK = 2048
"""Pixels of a block's side, or two windows if that is more."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A part of a side."""

    first: int
    last: int
    start: int
    """First pixel of the first window that meets it."""
    stop: int
    """Position behind the last pixel of the last one."""


@dataclass(slots=True)
class _Counts:
    """Statistics over all pixels of a channel, needed before the first is scaled."""

    histogram: np.ndarray
    """(N,) pixels of each of the N values of the file's type."""
    rows: np.ndarray
    """(H,) highest value of each row."""
    columns: np.ndarray
    """(W,) highest value of each column."""

    @classmethod
    def zeros(cls, shape: tuple[int, int], dtype: Any) -> _Counts:
        values = np.zeros(np.iinfo(dtype).max + 1, np.int64)
        return cls(values, np.zeros(shape[0], dtype), np.zeros(shape[1], dtype))

    @property
    def lowest(self) -> int:
        return int(np.flatnonzero(self.histogram)[0])


def segment_section(path: Path, target: Path, model: Model) -> None:
    """Write the label map of one section as a tiled BigTIFF.

    Raises ValueError for what can't be read or would have to be resampled, and OSError.
    """
    header, spec = read_section_header(path), model.prepare
    assert header is not None
    assert spec.spacing is not None
    shape, channels = header
    if resampled_shape(shape, (1.0, 1.0, 1.0), spec.spacing) != shape:
        raise ValueError("is too large to be resampled (prepare.spacing); scale it before, or train without a spacing")
    scaled, foreground = scalings(spec, channels), list[int]()
    with open_section(path) as slide:
        box = slice(0, 1), slice(0, shape[1]), slice(0, shape[2])
        counts, dtype = list[_Counts](), slide.read_region(0, 0, 0, 1, 1).dtype
        # The highest value decides whether float16 can hold 16 bits that are not scaled.
        kinds = {scaling.kind for scaling in scaled}
        if spec.crop_foreground or "zscore" in kinds or (dtype == np.uint16 and "none" in kinds):
            counts = _count(slide, shape[1:], channels, dtype)
        if spec.crop_foreground:
            box = _box(counts, scaled) or box
            for each in counts:
                # Where a channel is z-scored, what is cropped away has its lowest value.
                each.histogram[each.lowest] -= prod(shape) - prod(part.stop - part.start for part in box)
        tables = [
            _table(scaling, counts[number].histogram if counts else np.ones(np.iinfo(dtype).max + 1), spec.dtype)
            for number, scaling in enumerate(scaled)
        ]
        strips = _strips(slide, model, np.stack(tables), box, shape[2], foreground)
        kind = np.result_type(*map(np.min_scalar_type, model.values))
        write_section(target, _padded(strips, model, box, shape, kind), shape[1:], kind)
    warning = size_warning(sum(foreground) / prod(part.stop - part.start for part in box), model.foreground, 2)
    if warning is not None:
        log.warning("%s: %s", path, warning)


def _count(slide: Slide, shape: tuple[int, int], channels: int, dtype: Any) -> list[_Counts]:
    height, width = shape
    counts = [_Counts.zeros(shape, dtype) for _ in range(channels)]
    for top in range(0, height, _BLOCK):
        for left in range(0, width, _BLOCK):
            rows, columns = slice(top, min(top + _BLOCK, height)), slice(left, min(left + _BLOCK, width))
            block = slide.read_region(0, top, left, rows.stop - top, columns.stop - left)
            for channel, each in enumerate(counts):
                pixels = block[..., channel]
                each.histogram += np.bincount(pixels.reshape(-1), minlength=len(each.histogram))
                np.maximum(each.rows[rows], pixels.max(1), out=each.rows[rows])
                np.maximum(each.columns[columns], pixels.max(0), out=each.columns[columns])
    return counts


def _box(counts: Sequence[_Counts], scaled: Sequence[Scaling]) -> Box | None:
    """The `foreground_box` of the whole image."""
    return union([
        box_above(
            (each.rows.max(keepdims=True), each.rows, each.columns),
            scaling.window[0] if scaling.window else each.lowest,
        )
        for each, scaling in zip(counts, scaled, strict=True)
    ])  # fmt: skip


def _table(scaling: Scaling, histogram: np.ndarray, dtype: str) -> np.ndarray:
    """(N,) lookup table of the stored type: each value scaled as `write_scaled` scales a whole image.

    histogram: (N,), above 0 where a value may occur.
    """
    size, highest = len(histogram), int(np.flatnonzero(histogram)[-1])
    values, table = torch.arange(size, dtype=torch.float32).clamp_(max=highest), np.empty(size, dtype)
    if scaling.kind == "zscore":
        count, grey = histogram.sum(), np.arange(float(size))
        mean = float((histogram * grey).sum() / count)
        std = float(((histogram * (grey - mean) ** 2).sum() / count) ** 0.5)
        table[:] = values.sub_(mean).mul_(zscore_scale(mean, std)).numpy()
    else:
        write_scaled(iter([(slice(None), values)]), table, scaling)
    return table


def _spans(side: int, window: int, overlap: float) -> list[_Span]:
    """A side in parts that begin where windows do."""
    starts = window_starts(max(side, window), window, overlap)
    cuts, least = [0], max(_BLOCK, 2 * window)
    for start in starts:
        if start - cuts[-1] >= least and side - start >= window:
            cuts.append(start)
    spans = []
    for first, last in pairwise([*cuts, side]):
        covering = [start for start in starts if start < last and start + window > first]
        spans.append(_Span(first, last, covering[0], min(covering[-1] + window, side)))
    return spans


def _strips(
    slide: Slide, model: Model, tables: np.ndarray, box: Box, width: int, foreground: list[int]
) -> Iterator[np.ndarray]:
    """Rows of class indices, (rows, columns of the box), from the top. foreground: pixels of it are appended."""
    how, (_, tall, wide) = model.inference, box
    rows, columns = (
        _spans(part.stop - part.start, window, how.overlap)
        for part, window in zip((tall, wide), how.patch[1:], strict=True)
    )

    def read(row: _Span, column: _Span) -> Tensor:
        top, left = tall.start + row.start, wide.start + column.start
        block = slide.read_region(0, top, left, row.stop - row.start, column.stop - column.start)
        scaled = [table[block[..., channel]] for channel, table in enumerate(tables)]
        return torch.from_numpy(np.stack(scaled)[:, None])

    places = [(row, column) for row in rows for column in columns]
    with ThreadPoolExecutor(1) as reader:
        following = reader.submit(read, *places[0])
        for row in rows:
            strip = np.empty((row.last - row.first, wide.stop - wide.start), np.uint8)
            for column in columns:
                image, number = following.result(), places.index((row, column)) + 1
                if number < len(places):
                    following = reader.submit(read, *places[number])
                inner, across = (slice(span.first - span.start, span.last - span.start) for span in (row, column))
                labels = infer_part(model.network, image, (slice(0, 1), inner, across), how).cpu().numpy()
                label = paint(labels, model.regions) if model.regions else labels
                strip[:, column.first : column.last] = label[0]
            foreground.append(int(np.count_nonzero(strip)))
            yield strip


def _padded(
    strips: Iterator[np.ndarray], model: Model, box: Box, shape: tuple[int, int, int], kind: np.dtype[np.uint8]
) -> Iterator[np.ndarray]:
    """The strips in label values, with the background around the box."""
    values, (_, tall, wide) = np.array(model.values, kind), box
    sides = (wide.start, shape[2] - wide.stop)

    def blank(count: int) -> Iterator[np.ndarray]:
        for first in range(0, count, _BLOCK):
            yield np.full((min(_BLOCK, count - first), shape[2]), values[0])

    yield from blank(tall.start)
    for strip in strips:
        yield np.pad(values[strip], ((0, 0), sides), constant_values=values[0])
    yield from blank(shape[1] - tall.stop)
