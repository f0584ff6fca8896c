"""Selects and labels training and validation tiles, and reads them once into memory or a mapped file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hasten.cache.key import cache_dir
from hasten.cache.memory import available_memory
from hasten.cases.slide import Slide, open_slide
from hasten.cases.slide.annotation import read_lesions
from hasten.cases.slide.grid import Grid, cell_shares, grid_of
from hasten.cases.slide.listing import SlideCase
from hasten.cases.slide.tissue import tissue_of
from hasten.config.schema import CacheConfig
from hasten.config.size import parse_size, size_text
from hasten.observe.cores import usable_cores
from hasten.pathology.config import DetectionConfig, SlidesConfig, TilesConfig

_CHUNK = 16
"""Tiles that a thread reads at a time."""
_FINE = 16.0
"""Pixels of the lesion mask that a tile is long, at least, where the slide has so fine a level."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picked:
    """Tiles of one slide, not yet read."""

    case: SlideCase
    grid: Grid
    numbers: np.ndarray
    """(N,) positions in `grid.cells`."""
    labels: np.ndarray
    """(N,) uint8."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TileSet:
    """Tiles that have been read."""

    image: Tensor
    """(N, 3, H, W) uint8, in memory or mapped from a file."""
    label: Tensor
    """(N,) uint8, 1 where there is a lesion."""
    home: str
    """`ram` or `file`."""

    def __str__(self) -> str:
        count, positive = len(self.label), int(self.label.sum())
        return f"{count} tiles, {positive} with a lesion, {size_text(self.image.numel())} in {self.home}"


def open_case(case: SlideCase | Path, data: SlidesConfig) -> Slide:
    """The slide, with the size of its pixels from the settings where the file does not say it."""
    path = case if isinstance(case, Path) else case.slide
    slide = open_slide(path, None if data.backend == "auto" else data.backend)
    if slide.mpp is None:
        slide.mpp = data.mpp
    return slide


def tissue_grid(slide: Slide, tiles: TilesConfig, stride: int) -> Grid:
    """The cells with tissue of a slide. Raises ValueError that names its levels if it lacks the one to read from."""
    level = slide.level_of(tiles.mpp) if tiles.mpp is not None else slide.level(tiles.level or 0)
    tissue = tissue_of(slide, downsample=tiles.tissue_downsample, min_pixels=tiles.min_tissue_pixels)
    return grid_of(slide, tissue, level=level, tile=tiles.size, stride=stride, min_tissue=tiles.min_tissue)


def num_threads(tiles: TilesConfig) -> int:
    return tiles.num_threads or usable_cores()


def pick_tiles(cases: Sequence[SlideCase], config: DetectionConfig) -> list[Picked]:
    """The tiles of each slide whose label is certain, up to `tiles.per_slide` of each class.

    The tiles of a slide depend only on the seed and the slide's name. Raises the errors of opening a slide.
    """
    with ThreadPoolExecutor(num_threads(config.tiles)) as pool:
        return list(pool.map(lambda case: _select_tiles(case, config), cases))


def _select_tiles(case: SlideCase, config: DetectionConfig) -> Picked:
    tiles = config.tiles
    with open_case(case, config.data) as slide:
        grid = tissue_grid(slide, tiles, tiles.stride or tiles.size)
        long = tiles.size * grid.downsample
        middle_share, tile_share = _lesion_shares(slide, case, grid, (long / 2, long))
    positive = np.flatnonzero((middle_share >= tiles.lesion_share) & (middle_share > 0))
    negative = np.flatnonzero(tile_share == 0)
    rng = np.random.default_rng([config.train.seed, *case.id.encode()])
    selected = [np.sort(rng.permutation(each)[: tiles.per_slide]) for each in (negative, positive)]
    labels = np.repeat(np.array([0, 1], np.uint8), [len(each) for each in selected])
    return Picked(case=case, grid=grid, numbers=np.concatenate(selected), labels=labels)


def _lesion_shares(slide: Slide, case: SlideCase, grid: Grid, sides: tuple[float, ...]) -> list[np.ndarray]:
    """(N,) each: the share of lesion in squares of pixels of level 0 around the middle of each cell with tissue."""
    if case.mask is None:
        return [np.zeros(len(grid.cells)) for _ in sides]
    level = slide.level_near(max(1.0, grid.tile * grid.downsample / _FINE))
    lesions, downsample = read_lesions(case.mask, slide, level), slide.levels[level].downsample
    at = tuple(grid.cells.T)
    return [cell_shares(lesions, downsample, grid.shape, grid.cell, size=side)[at] for side in sides]


def require_both(picked: Sequence[Picked], what: str) -> None:
    """Raise ValueError if all tiles are of one class, which allows neither training nor evaluation."""
    labels = np.concatenate([each.labels for each in picked])
    positive = int(labels.sum())
    if positive == 0:
        masked = sum(each.case.mask is not None for each in picked)
        raise ValueError(
            f"none of the {len(labels)} tiles of the {len(picked)} {what} slides has a lesion ({masked} of these "
            "slides have a mask); check the masks and the split, or lower tiles.lesion_share"
        )
    if positive == len(labels):
        raise ValueError(
            f"all {positive} tiles of the {len(picked)} {what} slides have a lesion; add slides with normal tissue"
        )


def read_tiles(picked: Sequence[Picked], config: DetectionConfig) -> TileSet:
    """Read all picked tiles once, by threads.

    They take size x size x 3 bytes each: 147 KiB at 224 pixels, 14 GiB for 100 000. Above `tiles.ram` they lie in a
    unnamed file in the cache folder, whose space is freed when the process ends.
    """
    tiles = config.tiles
    label = np.concatenate([each.labels for each in picked])
    shape = (len(label), 3, tiles.size, tiles.size)
    home = _home(tiles, int(np.prod(shape, dtype=np.int64)))
    image = np.empty(shape, np.uint8) if home == "ram" else _mapped(shape)
    with ThreadPoolExecutor(num_threads(tiles)) as pool:
        first = 0
        for each in picked:
            with open_case(each.case, config.data) as slide:
                jobs = _jobs(slide, each, image[first : first + len(each.numbers)])
                list(pool.map(lambda job: read_rows(*job), jobs))
            first += len(each.numbers)
    return TileSet(image=torch.from_numpy(image), label=torch.from_numpy(label), home=home)


def read_rows(slide: Slide, grid: Grid, numbers: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Fill out (N, 3, H, W) uint8 with the tiles of these cells, and return it."""
    for row, number in enumerate(numbers):
        y, x = grid.corner(int(number))
        out[row] = slide.read_region(grid.level, y, x, grid.tile, grid.tile).transpose(2, 0, 1)
    return out


def _jobs(slide: Slide, picked: Picked, out: np.ndarray) -> Iterator[tuple[Slide, Grid, np.ndarray, np.ndarray]]:
    for first in range(0, len(picked.numbers), _CHUNK):
        part = slice(first, first + _CHUNK)
        yield slide, picked.grid, picked.numbers[part], out[part]


def _home(tiles: TilesConfig, size: int) -> str:
    if tiles.home != "auto":
        return tiles.home
    return "ram" if size <= (available_memory() // 2 if tiles.ram == "auto" else parse_size(tiles.ram)) else "file"


def _mapped(shape: tuple[int, ...]) -> np.ndarray:
    folder = cache_dir(CacheConfig())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            # Without this, a full disk would raise SIGBUS on writing to the map, which kills the process.
            os.posix_fallocate(file.fileno(), 0, int(np.prod(shape, dtype=np.int64)))
            return np.memmap(file, np.uint8, "r+", shape=shape)
    except OSError as error:
        size = size_text(float(np.prod(shape, dtype=np.int64)))
        raise ValueError(
            f"{folder}: has no room for {size} of tiles ({error.strerror or error}); set HASTEN_CACHE to a larger "
            "disk, or take fewer (tiles.per_slide)"
        ) from error
