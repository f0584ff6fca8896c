"""Tiles of slides: selected, labelled, read once, and augmented in batches of both classes equally often."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hasten.augment.affine import Zoom
from hasten.augment.chain import Batch, Chain, Fixed
from hasten.augment.colour import ColorJitter
from hasten.augment.grid import Flip, Rotate90
from hasten.augment.make_program import CaseSource, make_program
from hasten.augment.program import Program
from hasten.augment.store import store_of_batch
from hasten.cases.slide import Slide, open_slide
from hasten.cases.slide.annotation import read_lesions
from hasten.cases.slide.listing import SlideCase
from hasten.cases.slide.tissue import Grid, cell_shares, grid_of, tissue_of
from hasten.config.size import size_text
from hasten.observe.cores import available_memory, usable_cores
from hasten.pathology.config import ColourConfig, DetectionConfig, SlidesConfig, TilesConfig

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
    """(N, 3, H, W) uint8."""
    label: Tensor
    """(N,) uint8, 1 where there is a lesion."""

    def __str__(self) -> str:
        count, positive = len(self.label), int(self.label.sum())
        return f"{count} tiles, {positive} with a lesion, {size_text(self.image.numel())}"


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
    if len(np.unique(labels)) < 2:
        raise ValueError(
            f"{int(labels.sum())} of {len(labels)} tiles of the {len(picked)} {what} slides have a lesion, and tiles "
            "with and without are needed; check the masks and the split, or lower tiles.lesion_share"
        )


def read_tiles(picked: Sequence[Picked], config: DetectionConfig) -> TileSet:
    """Read all picked tiles once, by threads.

    They take size x size x 3 bytes each: 147 KiB at 224 pixels, 14 GiB for 100 000. Raises ValueError where memory has
    no room for them.
    """
    tiles = config.tiles
    label = np.concatenate([each.labels for each in picked])
    shape = (len(label), 3, tiles.size, tiles.size)
    size = math.prod(shape)
    if size > available_memory():
        raise ValueError(f"{size_text(size)} of tiles do not fit into the free memory; take fewer (tiles.per_slide)")
    image = np.empty(shape, np.uint8)
    first = 0
    for each in picked:
        with open_case(each.case, config.data) as slide:
            for part in read_ahead(slide, each.grid, each.numbers, size=_CHUNK, threads=num_threads(tiles)):
                image[first : first + len(part)] = part
                first += len(part)
    return TileSet(image=torch.from_numpy(image), label=torch.from_numpy(label))


def read_ahead(
    slide: Slide, grid: Grid, numbers: np.ndarray, *, size: int, threads: int
) -> Generator[np.ndarray, None, None]:
    """The tiles of these cells in their order, (B, 3, H, W) uint8 of up to `size` tiles, read ahead by threads."""

    def read(part: np.ndarray) -> np.ndarray:
        corners = [grid.corner(int(number)) for number in part]
        regions = [slide.read_region(grid.level, *corner, grid.tile, grid.tile) for corner in corners]
        return np.stack([region.transpose(2, 0, 1) for region in regions])

    waiting: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(numbers), size):
            waiting.append(pool.submit(read, numbers[first : first + size]))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


_KEY = "image"
_MIDDLE = 127.5


def normalised(image: Tensor) -> Tensor:
    """0 ... 255, of any shape, as float32 in -1 ... 1."""
    return (image.to(torch.float32) - _MIDDLE) / _MIDDLE


def tile_chain(config: ColourConfig) -> Chain:
    """Flips, quarter turns and zoom in one interpolation, then colours, on tiles of 0 ... 255; -1 ... 1 at its end."""
    low, high = config.zoom_range
    keys, colours = (_KEY,), {name: getattr(config, name) for name in ("brightness", "contrast", "saturation", "hue")}
    ops = (
        *(Flip(keys=keys, prob=config.flip_prob, spatial_axis=(axis,)) for axis in (0, 1)),
        Rotate90(keys=keys, prob=config.rotate90_prob),
        Zoom(keys=keys, prob=config.zoom_prob, min_zoom=(low,), max_zoom=(high,), mode=("bilinear",)),
        ColorJitter(keys=keys, **colours, value_range=255.0),
        Fixed(name="normalise", apply=_normalise, keys=keys),
    )
    return Chain(crop=None, ops=ops, keys=keys)


def _normalise(batch: Batch) -> Batch:
    return {**batch, _KEY: normalised(batch[_KEY])}


def balanced(label: Tensor) -> tuple[int, ...]:
    """Positions of all tiles, those of the rarer class repeated until both classes are as many.

    label: (N,) of 0 and 1.
    """
    groups = [torch.nonzero(label == value)[:, 0] for value in (0, 1)]
    most = max(len(group) for group in groups)
    return tuple(int(group[number % len(group)]) for group in groups for number in range(most))


def make_batches(
    tiles: TileSet, config: ColourConfig, *, batch_size: int, seed: int, device: torch.device, resident: bool
) -> Program:
    """Batches of image (B, 3, H, W) float32 and label (B,) uint8. resident: whether all tiles are kept on the device.

    Otherwise a thread gathers those of the next batches on the host.
    """
    store = replace(store_of_batch({_KEY: tiles.image}, tiles.image.device), per_case={"label": tiles.label})
    cases = CaseSource(store=store.to(device) if resident else store)
    options = {"batch_size": batch_size, "seed": seed, "device": device}
    return make_program(tile_chain(config), cases, train_cases=balanced(tiles.label), **options)
