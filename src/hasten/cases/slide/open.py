"""`open_slide`: one interface to cuCIM, tifffile and OpenSlide, which are imported when a slide is opened."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from hasten.cases.slide.types import BACKGROUND, Level, Slide, SlideReader
from hasten.cases.tiff import data_end, open_tiff
from hasten.files import first_line

log = logging.getLogger(__name__)

_PER_UNIT = {2: 25400.0, 3: 10000.0}
"""Micrometres in TIFF's units of resolution: inch and centimetre."""
_COARSER = 0.98
"""A page is a level of the one before it if it is smaller, and of the same shape to 2 %."""
INSTALL = "pip install 'hasten[wsi]'"
INSTALL_CUCIM = "pip install --no-deps cucim-cu12 (--no-deps spares 2 GB of CUDA libraries that reading does without)"
_CLASH = "horovod.torch"
"""A module whose library offers its symbols to all others; cuCIM (26.10) then ends the process on its first read."""
_TIFFS = (".tif", ".tiff", ".svs")


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

    def __init__(self, path: Path, *, deep: bool = False) -> None:
        """deep: take 16 bits, too, which `read` then gives."""
        import tifffile

        self._tiff = tifffile.TiffFile(path)
        try:
            self._pages = _level_pages(self._tiff)
            first = self._pages[0]
            for page in self._pages:
                kinds = (np.uint8, np.bool_, *([np.uint16] if deep else []))
                if page.dtype not in kinds or page.planarconfig != 1 or page.imagedepth != 1:
                    bits = "8- or 16-bit unsigned" if deep else "8-bit"
                    raise ValueError(f"holds {page.dtype} of shape {page.shape}; {bits} RGB or grey is needed")
            self.dtype = np.dtype(np.uint16 if first.dtype == np.uint16 else np.uint8)
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
        region = np.full((height, width, 3), BACKGROUND, self.dtype)
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
        return (plane if plane.shape[2] == 3 else plane[..., :1]).astype(self.dtype)


_READERS: dict[str, tuple[str, Callable[[Path], SlideReader]]] = {
    "cucim": ("cucim", CucimReader),
    "tifffile": ("tifffile", TifffileReader),
    "openslide": ("openslide", OpenSlideReader),
}
"""Name, module and reader, the fastest first (benchmarks/pathology.py): OpenSlide knows the most formats."""
BACKENDS = tuple(_READERS)
MASK_BACKENDS = ("tifffile", "openslide", "cucim")
"""Backends in the order for masks, whose single channel cuCIM reads only uncompressed."""


def open_slide(
    path: str | Path, backend: str | None = None, *, order: tuple[str, ...] = BACKENDS, deep: bool = False
) -> Slide:
    """Open a whole slide with `backend`, or with the first of `order` that is installed and can read it.

    deep: take 16 bits, too, which tifffile alone reads.
    Raises ValueError for a file that is missing, truncated, or that no backend can read (with each error), for an
    unknown backend, and for one that is not installed (with the command that installs it).
    """
    path = Path(path)
    if backend is not None and backend not in _READERS:
        raise ValueError(f"backend: {backend!r} is none; use one of {', '.join(_READERS)}")
    if not path.is_file():
        problem = "is a folder; name the slides in it" if path.is_dir() else "no such slide; check the path"
        raise ValueError(f"{path}: {problem}")
    available = installed()
    if backend == "cucim" and backend not in available and _CLASH in sys.modules:
        raise ValueError(f"{path}: cuCIM can't read in a process that has loaded Horovod; leave the backend open")
    if backend is not None and backend not in available:
        command = INSTALL_CUCIM if backend == "cucim" else INSTALL
        raise ValueError(f"{path}: the backend {backend} is not installed; {command}")
    _check_whole(path)
    errors: list[str] = []
    for name in [backend] if backend is not None else [name for name in order if name in available]:
        try:
            reader = TifffileReader(path, deep=True) if deep and name == "tifffile" else _READERS[name][1](path)
            slide = Slide(path, name, reader)
        except Exception as error:  # each library has errors of its own
            errors.append(f"{name}: {first_line(error)}")
            continue
        log.debug("%s: %s reads it", path, name)
        return slide
    more = "" if "openslide" in available else f"; OpenSlide knows more formats ({INSTALL})"
    raise ValueError(f"{path}: can't be read as a slide ({'; '.join(errors)}){more}")


def installed() -> tuple[str, ...]:
    """The installed backends, the fastest first; without cuCIM if Horovod is loaded, with which it crashes."""
    names = [name for name, (module, _) in _READERS.items() if importlib.util.find_spec(module) is not None]
    return tuple(name for name in names if name != "cucim" or _CLASH not in sys.modules)


def _check_whole(path: Path) -> None:
    """Raise ValueError for a TIFF that is shorter than its tiles: libraries would invent the missing pixels."""
    if path.suffix.lower() not in _TIFFS:
        return
    try:
        with open_tiff(path) as tiff:
            size, end = tiff.filehandle.size, max(data_end(page) for page in tiff.pages)
    except Exception as error:  # any error of a damaged directory
        raise ValueError(f"{path}: is no TIFF, or cut short ({error}); copy the slide again") from error
    if end > size:
        raise ValueError(f"{path}: is cut short ({size} bytes of at least {end}); copy the slide again")


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
