"""Where a patch is cut: around a foreground voxel of an evenly drawn class, or anywhere."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.cache.arena import Tables
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words, uniform

_CHOICE, _PLACE = 0x11, 0x12


def crop_start(
    tables: Tables, case: Tensor, key: Tensor, patch: tuple[int, int, int], foreground_prob: float
) -> Tensor:
    """(B, 3) int64 first voxel of each patch in its case; negative where the case is smaller than the patch.

    With probability `foreground_prob` the patch is centred on a remembered voxel of a class drawn evenly from those
    present in the case (moved inward until it lies in the case); otherwise every start that keeps the patch in the case
    is equally likely. A case smaller than the patch lies wholly in it, at a random place. case: (B,), key: (B, 2).
    """
    shape = tables.shape[case]
    size = constant(patch, case.device)
    slack = shape - size
    low, high = slack.clamp(max=0), slack.clamp(min=0)
    words = random_words(key, _PLACE, 5)
    anywhere = low + below(words[:, :3], high - low + 1)
    if not tables.points.shape[0]:
        return anywhere

    counts = tables.point_count[case]
    present = (counts > 0).to(torch.int64)
    num_present = present.sum(1)
    rank = below(words[:, 3], num_present.clamp(min=1))
    # The chosen class is the first one with `rank + 1` present classes up to and including it.
    reached = (present.cumsum(1) > rank[:, None]).to(torch.int64)
    label_class = reached.argmax(1)
    rows = torch.arange(case.shape[0], device=case.device)
    count = counts[rows, label_class]
    slot = tables.point_start[case, label_class] + below(words[:, 4], count.clamp(min=1))
    point = tables.points[slot.clamp(max=tables.points.shape[0] - 1)].to(torch.int64)
    centred = torch.minimum(torch.maximum(voxel_of(point, shape) - size // 2, low), high)

    wanted = (uniform(key, _CHOICE, 1)[:, 0] < foreground_prob) & (num_present > 0)
    return torch.where(wanted[:, None], centred, anywhere)


def voxel_of(point: Tensor, shape: Tensor) -> Tensor:
    """(B, 3) place in its case of each voxel given by its linear index. point: (B,) int64; shape: (B, 3)."""
    plane = shape[:, 1] * shape[:, 2]
    return torch.stack([point // plane, point % plane // shape[:, 2], point % shape[:, 2]], dim=1)
