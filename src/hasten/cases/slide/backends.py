"""Slide readers, each with the interface `types.SlideReader`. Their libraries are imported when a slide is opened."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hasten.cases.slide.types import BACKGROUND, Level

_PER_UNIT = {2: 25400.0, 3: 10000.0}
"""Micrometres in TIFF's units of resolution: inch and centimetre."""
_COARSER = 0.98
"""A page is a level of the one before it if it is smaller, and of the same shape to 2 %."""


class CucimReader:
    """NVIDIA's cuCIM, on the CPU: TIFF, SVS and Philips TIFF."""

    def __init__(self, path: Path) -> None:
        self._image = import_module("cucim").CuImage(str(path))  # cuCIM has no type information for it
        if self._image.dtype.bits != 8:
            raise ValueError(f"has values of {self._image.dtype.bits} bits, not 8")
        # Other formats than plain RGB take a slow path that can crash the process (cuCIM 26.10).
        if self._image.shape[-1] != 3:
            raise ValueError("is not plain RGB")
        pyramid = self._image.resolutions
        self.levels = tuple(
            Level(int(height), int(width), float(down))
            for (width, height), down in zip(pyramid["level_dimensions"], pyramid["level_downsamples"], strict=True)
        )
        sized = self._image.spacing_units()[1] == "micrometer"
        self.mpp: float | None = float(self._image.spacing()[1]) if sized else None
        # An unsupported compression raises only when a tile is read.
        self.read(len(self.levels) - 1, 0, 0, 1, 1)

    def read(self, level: int, y: int, x: int, height: int, width: int) -> np.ndarray:
        down = self.levels[level].downsample
        region = self._image.read_region(location=(round(x * down), round(y * down)), size=(width, height), level=level)
        return np.ascontiguousarray(np.asarray(region)[..., :3])

    def close(self) -> None:
        self._image.close()


class OpenSlideReader:
    """OpenSlide: the formats of most makers of scanners, and generic tiled TIFF."""

    def __init__(self, path: Path) -> None:
        import openslide

        self._slide = openslide.OpenSlide(str(path))
        self.levels = tuple(
            Level(height, width, down)
            for (width, height), down in zip(self._slide.level_dimensions, self._slide.level_downsamples, strict=True)
        )
        mpp = self._slide.properties.get("openslide.mpp-x")
        self.mpp = float(mpp) if mpp else None

    def read(self, level: int, y: int, x: int, height: int, width: int) -> np.ndarray:
        down = self.levels[level].downsample
        region = np.asarray(self._slide.read_region((round(x * down), round(y * down)), level, (width, height)))
        # Pixels that were not scanned are transparent.
        return np.where(region[..., 3:] == 0, np.uint8(BACKGROUND), region[..., :3])

    def close(self) -> None:
        self._slide.close()


class TifffileReader:
    """tifffile, tile by tile with the codecs of imagecodecs: TIFF of any compression, SVS, OME-TIFF."""

    def __init__(self, path: Path) -> None:
        import tifffile

        self._tiff = tifffile.TiffFile(path)
        try:
            self._pages = _level_pages(self._tiff)
            first = self._pages[0]
            for page in self._pages:
                if page.dtype not in (np.uint8, np.bool_) or page.planarconfig != 1 or page.imagedepth != 1:
                    raise ValueError(f"holds {page.dtype} of shape {page.shape}; 8-bit RGB or grey is needed")
            self.levels = tuple(
                Level(page.imagelength, page.imagewidth, _rounded(first.imagewidth / page.imagewidth))
                for page in self._pages
            )
            self.mpp = _pixel_size(first)
            self._file = os.open(path, os.O_RDONLY)
        except BaseException:
            self._tiff.close()
            raise

    def read(self, level: int, y: int, x: int, height: int, width: int) -> np.ndarray:
        page = self._pages[level]
        region = np.full((height, width, 3), BACKGROUND, np.uint8)
        tall, wide = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, page.imagewidth)
        across = -(-page.imagewidth // wide)
        for row in range(y // tall, -(-(y + height) // tall)):
            for column in range(x // wide, -(-(x + width) // wide)):
                tile = self._tile(page, row * across + column)
                if tile is None:
                    continue
                top, left = row * tall, column * wide
                upper, lower = max(y, top), min(y + height, top + tile.shape[0])
                first, last = max(x, left), min(x + width, left + tile.shape[1])
                region[upper - y : lower - y, first - x : last - x] = tile[
                    upper - top : lower - top, first - left : last - left
                ]
        return region

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._tiff.close()

    def _tile(self, page: Any, index: int) -> np.ndarray | None:
        """(H, W, 3 or 1) of one tile or strip; None for one that was left out."""
        count = page.databytecounts[index]
        if count == 0:
            return None
        # pread has no file position that threads could race on.
        data = os.pread(self._file, count, page.dataoffsets[index])
        if len(data) < count:
            raise ValueError("the file ends within a tile")
        tile = page.decode(data, index, jpegtables=page.jpegtables)[0]
        if tile is None:
            return None
        plane = tile[0][..., :3]
        return (plane if plane.shape[2] == 3 else plane[..., :1]).astype(np.uint8)


def _level_pages(tiff: Any) -> list[Any]:
    """The pages of the pyramid, the finest first. A file may list them as one series, or just one after another."""
    series = tiff.series[0]
    if len(series.levels) > 1:
        return [level.keyframe for level in series.levels]
    pages = [tiff.pages[0].keyframe]
    for number in range(1, len(tiff.pages)):
        page, before, first = tiff.pages[number].keyframe, pages[-1], pages[0]
        alike = page.imagewidth * first.imagelength / (page.imagelength * first.imagewidth)
        if page.is_tiled and page.imagewidth < before.imagewidth and _COARSER < alike < 1 / _COARSER:
            pages.append(page)
    return pages


def _pixel_size(page: Any) -> float | None:
    """Micrometres, from Aperio's description or the resolution of a TIFF."""
    match = re.search(r"\bMPP\s*=\s*([\d.]+)", page.description or "")
    if match:
        return float(match[1])
    unit, resolution = page.tags.get("ResolutionUnit"), page.tags.get("XResolution")
    per_unit = _PER_UNIT.get(int(unit.value)) if unit is not None else None
    if per_unit is None or resolution is None:
        return None
    above, below = resolution.value
    return per_unit * below / above if above and below and above / below > 100 * per_unit / 10000 else None


def _rounded(downsample: float) -> float:
    """Sides that were rounded up make a ratio of 4.0003: levels are whole numbers apart."""
    nearest = round(downsample)
    return float(nearest) if abs(downsample - nearest) < 0.01 * nearest else downsample
