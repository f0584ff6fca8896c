"""A slide that is open: its levels, and any region of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from hasten.files import first_line

BACKGROUND = 255
"""The value outside a slide: white, as the glass."""
_NEAR = 0.1
"""A level serves for a size of pixels that differs from its own by up to this share."""


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution of a slide."""

    height: int
    width: int
    downsample: float
    """How many pixels of level 0 a pixel is long."""

    def __str__(self) -> str:
        return f"{self.height} x {self.width} (1/{self.downsample:g})"


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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        def described(number: int, level: Level) -> str:
            size = "" if self.mpp is None else f", {self.mpp * level.downsample:.3g} um/pixel"
            return f"{number}: {level.height} x {level.width}{size}"

        return "; ".join(described(number, level) for number, level in enumerate(self.levels))
