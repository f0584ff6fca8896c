"""`open_slide`: one interface to cuCIM, tifffile and OpenSlide, which are imported when a slide is opened."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hasten.cases.tiff import data_end, open_tiff
from hasten.files import first_line
from hasten.system import BINARY, read_at

log = logging.getLogger(__name__)

BACKGROUND = 255
"""The value outside a slide: white, as the glass."""
_NEAR = 0.1
"""A level serves for a size of pixels that differs from its own by up to this share."""
_PER_UNIT = {2: 25400.0, 3: 10000.0}
"""Micrometres in TIFF's units of resolution: inch and centimetre."""
_COARSER = 0.98
"""A page is a level of the one before it if it is smaller, and of the same shape to 2 %."""
INSTALL = "pip install 'hasten[wsi]'"
INSTALL_CUCIM = "pip install --no-deps cucim-cu12 (--no-deps spares 2 GB of CUDA libraries that reading does without)"
_CLASH = "horovod.torch"
"""A module whose library offers its symbols to all others; cuCIM (26.10) then ends the process on its first read."""
_TIFFS = (".tif", ".tiff", ".svs")


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution of a slide."""

    height: int
    width: int
    downsample: float
    """How many pixels of level 0 a pixel is long."""


class SlideReader(Protocol):
    """The interface of a slide library. Several threads may call `read` concurrently."""

    levels: tuple[Level, ...]
    mpp: float | None
    """Micrometres that a pixel of level 0 is long, if the file says so."""

    def read(self, level: int, y: int, x: int, height: int, width: int) -> np.ndarray:
        """(height, width, 3) uint8 of a region inside the level, y and x in its own pixels."""

    def close(self) -> None: ...


class Slide:
    """`read_region` is for any number of threads; close the slide, or use it in a `with`."""

    def __init__(self, path: Path, backend: str, reader: SlideReader) -> None:
        self.path, self.backend = path, backend
        self.levels, self.mpp = reader.levels, reader.mpp
        self._reader = reader

    def read_region(self, level: int, y: int, x: int, height: int, width: int) -> np.ndarray:
        """(height, width, 3) uint8 RGB from row y and column x of the level on, in its own pixels.

        The area outside the slide is white. Raises ValueError for an unknown level, naming the existing ones,
        and for a file that can't be decoded.
        """
        pyramid_level = self.levels[self.level(level)]
        top, left = max(y, 0), max(x, 0)
        bottom, right = min(y + height, pyramid_level.height), min(x + width, pyramid_level.width)
        inside = (bottom - top, right - left)
        if inside == (height, width):
            return self._read(level, top, left, height, width)
        region = np.full((height, width, 3), BACKGROUND, np.uint8)
        if min(inside) > 0:
            region[top - y : bottom - y, left - x : right - x] = self._read(level, top, left, *inside)
        return region

    def read_level(self, level: int) -> np.ndarray:
        """(H, W, 3) uint8, the whole of a level."""
        pyramid_level = self.levels[self.level(level)]
        return self.read_region(level, 0, 0, pyramid_level.height, pyramid_level.width)

    def level(self, level: int) -> int:
        """The level itself. Raises ValueError where the slide does not have it."""
        if not 0 <= level < len(self.levels):
            raise ValueError(f"{self.path}: has no level {level}; its levels are {self._levels()}")
        return level

    def level_of(self, mpp: float) -> int:
        """The level whose pixels are `mpp` micrometres long. Raises ValueError where there is none."""
        if self.mpp is None:
            raise ValueError(
                f"{self.path}: does not state the size of its pixels, so that {mpp:g} um/pixel can't be looked for; "
                f"name a level instead: {self._levels()}"
            )
        sizes = [self.mpp * level.downsample for level in self.levels]
        nearest = min(range(len(sizes)), key=lambda number: abs(sizes[number] - mpp))
        if abs(sizes[nearest] - mpp) > _NEAR * mpp:
            raise ValueError(f"{self.path}: has no level of {mpp:g} um/pixel; its levels are {self._levels()}")
        return nearest

    def level_near(self, downsample: float) -> int:
        """The coarsest level that is no coarser than `downsample`."""
        fine = [number for number, level in enumerate(self.levels) if level.downsample <= downsample * (1 + _NEAR)]
        return max(fine, key=lambda number: self.levels[number].downsample, default=0)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Slide:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, level: int, y: int, x: int, height: int, width: int) -> np.ndarray:
        try:
            return self._reader.read(level, y, x, height, width)
        except Exception as error:  # each library has errors of its own
            raise ValueError(
                f"{self.path}: level {level} can't be read at row {y}, column {x} by {self.backend} "
                f"({first_line(error)}); "
                "copy the slide again, or name another backend"
            ) from error

    def _levels(self) -> str:
        sizes = ["" if self.mpp is None else f", {self.mpp * each.downsample:.3g} um/pixel" for each in self.levels]
        levels = zip(self.levels, sizes, strict=True)
        return "; ".join(f"{at}: {each.height} x {each.width}{size}" for at, (each, size) in enumerate(levels))


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
            self._file = os.open(path, os.O_RDONLY | BINARY)
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
        data = read_at(self._file, count, page.dataoffsets[index])
        if len(data) < count:
            raise ValueError("the file ends within a tile")
        tile = page.decode(data, index, jpegtables=page.jpegtables)[0]
        if tile is None:
            return None
        plane = tile[0][..., :3]
        return (plane if plane.shape[2] == 3 else plane[..., :1]).astype(np.uint8)


_READERS: dict[str, Callable[[Path], SlideReader]] = {
    "cucim": CucimReader,
    "tifffile": TifffileReader,
    "openslide": OpenSlideReader,
}
"""Readers by module, the fastest first (benchmarks/pathology.py): OpenSlide knows the most formats."""
BACKENDS = tuple(_READERS)
MASK_BACKENDS = ("tifffile", "openslide", "cucim")
"""Backends in the order for masks, whose single channel cuCIM reads only uncompressed."""


def open_slide(path: str | Path, backend: str | None = None, *, order: tuple[str, ...] = BACKENDS) -> Slide:
    """Open a whole slide with `backend`, or with the first of `order` that is installed and can read it.

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
            slide = Slide(path, name, _READERS[name](path))
        except Exception as error:  # each library has errors of its own
            errors.append(f"{name}: {first_line(error)}")
            continue
        log.debug("%s: %s reads it", path, name)
        return slide
    more = "" if "openslide" in available else f"; OpenSlide knows more formats ({INSTALL})"
    raise ValueError(f"{path}: can't be read as a slide ({'; '.join(errors)}){more}")


def installed() -> tuple[str, ...]:
    """The installed backends, the fastest first; without cuCIM if Horovod is loaded, with which it crashes."""
    found = [name for name in BACKENDS if importlib.util.find_spec(name) is not None]
    return tuple(name for name in found if name != "cucim" or _CLASH not in sys.modules)


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
