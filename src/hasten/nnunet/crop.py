"""Patch positions as nnU-Net's data loader draws them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.crop import draw_point, voxel_of
from hasten.cache.arena import PointSets
from hasten.config.schema import Triple
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words, uniform

_PLACE, _CHOICE = 1, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class NnunetCrop:
    """`nnUNetDataLoader.get_bbox`: the last `forced` patches of each batch are about foreground, the others anywhere.

    A patch about foreground may hang over the upper border of the case by so much that its voxel is the centre, as
    nnU-Net does; what lies outside is 0.
    """

    size: Triple
    initial_size: Triple
    """What nnU-Net cuts before it rotates; the patch is the centre of it."""
    batch_size: int
    forced: int
    forced_prob: float | None = None
    """Probability that a patch is forced to foreground, instead of `forced` (`probabilistic_oversampling`)."""
    annotated: bool = False
    """Whether the last point set is of all voxels with a label: patches that are not forced lie about one of them."""
    keys: tuple[str, ...] = ("image", "label")
    num_samples: int = 1
    pad: bool = True

    def start(self, key: Tensor, case: Tensor, shape: Tensor, sets: PointSets | None) -> Tensor:
        assert sets is not None
        size, initial = constant(self.size, key.device), constant(self.initial_size, key.device)
        need = torch.maximum(initial - size, initial - shape)
        low = -((need + 1) // 2)
        high = shape + (need + 1) // 2 - initial
        anywhere = low + below(random_words(key, _PLACE, 3), high - low + 1)
        forced = self._is_forced(key)
        point, drawn = draw_point(sets, case, key, self._weights(sets, case, forced))
        about = torch.maximum(voxel_of(point, shape) - initial // 2, low)
        use = (forced | self.annotated) & drawn
        return torch.where(use[:, None], about, anywhere) + initial // 2 - size // 2

    def _is_forced(self, key: Tensor) -> Tensor:
        if self.forced_prob is not None:
            return uniform(key, _CHOICE, 1)[:, 0] < self.forced_prob
        return torch.arange(len(key), device=key.device) % self.batch_size >= self.batch_size - self.forced

    def _weights(self, sets: PointSets, case: Tensor, forced: Tensor) -> Tensor:
        """(B, K) of each set. Annotated voxels stand for a class only where a case has no other."""
        counts = sets.num[case]
        weight = torch.ones(counts.shape, device=counts.device)
        if self.annotated:
            others = (counts[:, :-1] > 0).any(1)
            weight[:, :-1] = forced[:, None].to(weight.dtype)
            weight[:, -1] = (~(forced & others)).to(weight.dtype)
        return weight
