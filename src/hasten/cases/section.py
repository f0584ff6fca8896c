"""Reads and writes 2-D TIFFs in parts that are too large to be read as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hasten.cases.picture import ORIENTATION
from hasten.cases.tiff import TIFF_ENDINGS, alpha_samples, open_tiff
from hasten.files import replacing

if TYPE_CHECKING:
    from hasten.cases.slide.open import Slide

SECTION_PIXELS = 2**26
"""A TIFF with more pixels is read in parts."""
_TILE = 512
_BUFFER = 1 << 24
"""Bytes that are compressed at once."""


def read_section_header(path: Path) -> tuple[tuple[int, int, int], int] | None:
    """Shape (1, H, W) and number of channels of the first page of a TIFF; None for what is read as a whole.

    Raises ValueError for a section that would have to be turned, and one with other channels than gray or colour.
    """
    if path.suffix.lower() not in TIFF_ENDINGS:
        return None
    try:
        with open_tiff(path) as tiff:
            page = tiff.pages.first
            height, width, samples = page.imagelength, page.imagewidth, page.samplesperpixel
            if height * width <= SECTION_PIXELS:
                return None
            pages = sum((each.imagelength, each.imagewidth) == (height, width) for each in tiff.pages)
    except ValueError:  # no TIFF, or a damaged one, for which the picture reader raises the error
        return None
    orientation = page.tags.valueof(ORIENTATION, 1)
    if orientation != 1:
        raise ValueError(
            f"{path}: is read in parts, but is to be turned (its orientation tag is {orientation}); save it upright, "
            "without that tag."
        )
    channels = (samples - len(alpha_samples(page))) * pages
    if pages > 1 or channels not in (1, 3) or any(at < channels for at in alpha_samples(page)):
        raise ValueError(
            f"{path}: is so large that it is read in parts, which takes one page of 1 or 3 channels with opacity "
            f"behind them, but it holds {channels} on {pages} pages; cut it into tiles."
        )
    return (1, height, width), channels


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
            _tiles(strips),
            shape=shape,
            dtype=dtype,
            tile=(_TILE, _TILE),
            compression="zlib",
            photometric="minisblack",
            metadata=None,
            maxworkers=1,
            buffersize=_BUFFER,
        )


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
