"""What the coming samples will read of the cases that lie on the disk."""

from __future__ import annotations

import torch

from hasten.cache.pages import Pages
from hasten.config.schema import Triple
from hasten.sample.types import Draw


def read_ahead(pages: Pages, drawn: Draw, patch: Triple) -> None:
    """Have the boxes that these samples touch read in the background."""
    half = (torch.tensor(patch, dtype=torch.float32) - 1) / 2
    reach = (drawn.matrix.abs() * half).sum(2)
    centre = drawn.start + half
    lows = torch.floor(centre - reach).to(torch.int64).tolist()
    highs = (torch.ceil(centre + reach).to(torch.int64) + 2).tolist()
    for case, low, high in zip(drawn.case.tolist(), lows, highs, strict=True):
        pages.want(case, low, high)
