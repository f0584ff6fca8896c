"""Draws the voxels that crops are centred on: by foreground and background, by class, or by weight."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.cache.arena import PointSets
from hasten.sample.random import below, random_words, uniform

_SET, _POINT = 0x61, 0x62


def draw_point(sets: PointSets, case: Tensor, key: Tensor, ratios: Tensor) -> tuple[Tensor, Tensor]:
    """A voxel for each sample: (B,) int64 linear index within its case, and (B,) bool whether there was one to draw.

    A set is drawn with these ratios among those that the case has, then one of its points uniformly. case: (B,) int64;
    key: (B, 2); ratios: (K,) float32, not negative.
    """
    counts = sets.num[case]
    weight = torch.where(counts > 0, ratios, torch.zeros_like(ratios))
    reached = weight.cumsum(1)
    total = reached[:, -1:]
    chosen = (reached > uniform(key, _SET, 1) * total).to(torch.int64).argmax(1)
    rows = torch.arange(case.shape[0], device=case.device)
    count = counts[rows, chosen]
    slot = sets.first[case, chosen] + below(random_words(key, _POINT, 1)[:, 0], count.clamp(min=1))
    exists = (total[:, 0] > 0) & (count > 0)
    point = sets.points[slot.clamp(max=max(sets.points.shape[0] - 1, 0))] if sets.points.shape[0] else slot * 0
    return point.to(torch.int64), exists
