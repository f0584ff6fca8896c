"""Reads and writes 2-D TIFFs in parts that are too large to be read as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hasten.cases.picture import ORIENTATION
from hasten.cases.tiff import TIFF_ENDINGS, tiff_directories
from hasten.files import replacing

if TYPE_CHECKING:
    from hasten.cases.slide.types import Slide

SECTION_PIXELS = 2**26
"""A TIFF with more pixels is read in parts."""
_WIDTH, _HEIGHT, _SAMPLES = 256, 257, 277
"""TIFF tags."""
_TILE = 512
_BUFFER = 1 << 24
"""Bytes that are compressed at once."""


def read_section_header(path: Path) -> tuple[tuple[int, int, int], int] | None:
    """Shape (1, H, W) and number of channels of the first page of a TIFF; None for what is read as a whole.

    Raises ValueError for a section that would have to be turned.
    """
    if path.suffix.lower() not in TIFF_ENDINGS:
        return None
    try:
        with path.open("rb") as file:
            tags = next(tiff_directories(file))
        height, width, samples = int(tags[_HEIGHT]), int(tags[_WIDTH]), int(tags.get(_SAMPLES, 1))
    except Exception:  # no TIFF, or a damaged one, for which the picture reader raises the error
        return None
    if height * width <= SECTION_PIXELS:
        return None
    if tags.get(ORIENTATION, 1) != 1:
        raise ValueError(
            f"{path}: is read in parts, but is to be turned (its orientation tag is {tags[ORIENTATION]}); save it "
            "upright, without that tag."
        )
    return (1, height, width), 1 if samples < 3 else 3


def open_section(path: Path) -> Slide:
    """The slide whose level 0 is the section, of 8 or 16 bits. Raises ValueError."""
    from hasten.cases.slide.open import open_slide

    return open_slide(path, "tifffile", deep=True)


def write_section(
    target: Path, strips: Iterator[np.ndarray], shape: tuple[int, int], dtype: np.dtype[np.uint8]
) -> None:
    """Write (H, W) label values as a tiled, compressed BigTIFF; atomically.

    strips: rows of it, from the top. Raises OSError, and what `strips` raises.
    """
    import tifffile

    with (
        replacing(target, target.with_name(f".partial-{target.name}")) as file,
        tifffile.TiffWriter(file, bigtiff=True) as writer,
    ):
        writer.write(
            _tiles(strips), shape=shape, dtype=dtype, tile=(_TILE, _TILE), compression="zlib", photometric="minisblack",
            metadata=None, maxworkers=1, buffersize=_BUFFER,
        )  # fmt: skip


def _tiles(strips: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """Row after row of tiles; those at the right and at the bottom are smaller."""
    rows: np.ndarray | None = None
    for strip in strips:
        rows = strip if rows is None else np.concatenate([rows, strip])
        count = len(rows) // _TILE * _TILE
        yield from _split_row(rows[:count])
        rows = rows[count:].copy()
    if rows is not None:
        yield from _split_row(rows)


def _split_row(rows: np.ndarray) -> Iterator[np.ndarray]:
    for top in range(0, len(rows), _TILE):
        for left in range(0, rows.shape[1], _TILE):
            yield np.ascontiguousarray(rows[top : top + _TILE, left : left + _TILE])
