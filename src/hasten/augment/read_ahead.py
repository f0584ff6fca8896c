"""Prefetches the parts of cases on the disk that the next samples read."""

from __future__ import annotations

import torch

from hasten.augment.chain import Warp
from hasten.augment.draw import Draws, SamplingGrid
from hasten.cache.pages import Pages


def read_ahead(pages: Pages, draws: Draws, first: Warp) -> None:
    """Read the boxes that these samples touch in the background. first: the stage that reads the cases."""
    grid = draws.stages[0]
    assert isinstance(grid, SamplingGrid)
    entering, leaving = (torch.tensor(size, dtype=torch.float32) for size in (first.size, first.out))
    affine = next(iter(grid.maps.values()))
    reach = (affine.linear.abs() * ((leaving - 1) / 2)).sum(2)
    centre = draws.start + (entering - 1) / 2 + affine.shift
    lows = torch.floor(centre - reach).to(torch.int64).tolist()
    highs = (torch.ceil(centre + reach).to(torch.int64) + 2).tolist()
    for case, low, high in zip(draws.case.tolist(), lows, highs, strict=True):
        pages.want(case, low, high)
