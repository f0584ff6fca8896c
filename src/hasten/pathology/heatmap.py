"""Heat maps: the chance of a lesion around each cell of a slide with tissue."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from hasten.cases.slide import Slide
from hasten.cases.slide.grid import Grid
from hasten.observe.rundir import write_json
from hasten.pathology.batches import normalised
from hasten.pathology.tiles import read_rows
from hasten.runtime.memory_format import memory_format
from hasten.runtime.precision import autocast, tensor_cores
from hasten.runtime.variant import Variant

_PICTURE = 640
"""Pixels that the longer side of a picture has, at least about."""
_HEAT = np.array((230, 20, 20), np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """A trained classifier: tiles (B, 3, H, W) uint8 to chances (B,) float32, both on the host."""

    network: nn.Module
    """Network in evaluation mode and in the memory format of the variant."""
    variant: Variant
    device: torch.device
    batch_size: int
    threads: int

    @torch.no_grad()
    def __call__(self, tiles: Tensor) -> Tensor:
        layout = memory_format(2, self.variant.channels_last)
        parts = []
        for part in tiles.split(self.batch_size):
            image = normalised(part.to(self.device)).contiguous(memory_format=layout)
            with tensor_cores(self.device, self.variant.precision), autocast(self.device, self.variant.precision):
                logit = self.network(image)
            parts.append(logit.float().sigmoid()[:, 0])
        return torch.cat(parts).cpu() if parts else torch.zeros(0)


def heat_map(slide: Slide, grid: Grid, scorer: Scorer) -> np.ndarray:
    """(rows, columns) float32: the chance of each cell with tissue, 0 elsewhere. Tiles are read ahead by threads."""
    heat = np.zeros(grid.shape, np.float32)
    start = 0
    for tiles in _read_ahead(slide, grid, scorer):
        rows, columns = grid.cells[start : start + len(tiles)].T
        heat[rows, columns] = scorer(torch.from_numpy(tiles)).numpy()
        start += len(tiles)
    return heat


def _read_ahead(slide: Slide, grid: Grid, scorer: Scorer) -> Iterator[np.ndarray]:
    """The tiles of all cells in their order, (B, 3, H, W) at a time."""

    def read(first: int) -> np.ndarray:
        numbers = np.arange(first, min(first + size, len(grid.cells)))
        return read_rows(slide, grid, numbers, np.empty((len(numbers), 3, grid.tile, grid.tile), np.uint8))

    # Each thread reads a part of a batch, so that the first batch does not wait for a single thread.
    size = max(1, scorer.batch_size // scorer.threads)
    waiting: deque[Future[np.ndarray]] = deque()
    with ThreadPoolExecutor(scorer.threads) as pool:
        for first in range(0, len(grid.cells), size):
            waiting.append(pool.submit(read, first))
            if len(waiting) > 2 * scorer.threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


HEAT_MAP_ENDINGS = (".npy", ".json", ".png")
"""Suffixes of the files that `write_heat_map` writes."""


def write_heat_map(folder: Path, name: str, heat: np.ndarray, slide: Slide, grid: Grid) -> None:
    """Write NAME.npy with the values, NAME.json with their position on the slide, and NAME.png as a preview.

    heat: (rows, columns), as from `heat_map`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", heat)
    about = {
        "slide": slide.path.name,
        "backend": slide.backend,
        "level": grid.level,
        "downsample": grid.downsample,
        "tile": grid.tile,
        "stride": grid.stride,
        "cell": grid.cell,
        "mpp": slide.mpp,
        "shape": list(grid.shape),
        "cells_with_tissue": len(grid.cells),
        "size": [slide.levels[0].height, slide.levels[0].width],
    }
    write_json(folder / f"{name}.json", about)
    _picture(slide, grid, heat).save(folder / f"{name}.png")


def _picture(slide: Slide, grid: Grid, heat: np.ndarray) -> Image.Image:
    """The slide in grey, and red over it where lesions are likely."""
    scale = max(1, round(_PICTURE / max(grid.shape)))
    height, width = (scale * side for side in grid.shape)
    level = slide.level_near(grid.cell / scale)
    pyramid_level = slide.levels[level]
    covered = [round(side * grid.cell / pyramid_level.downsample) for side in grid.shape]
    grey = Image.fromarray(slide.read_region(level, 0, 0, *covered)).convert("L").resize((width, height))
    base = np.repeat(np.asarray(grey, np.float32)[..., None], 3, axis=2)
    share = np.kron(heat, np.ones((scale, scale), np.float32))[..., None] * 0.75
    return Image.fromarray((base * (1 - share) + _HEAT * share).astype(np.uint8))
