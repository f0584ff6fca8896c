"""Where a patch is cut, with the definitions of MONAI's crops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from hasten.augment.op import Checked, Count, Prob, Size
from hasten.cache.arena import PointSets
from hasten.config.schema import Triple
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words, uniform

_PLACE, _CHOICE = 1, 2
_SET, _POINT = 0x61, 0x62
_MAX_POINTS = 2**16
"""Voxels that are remembered of each set and case: enough that crops hardly repeat, 256 KB at most."""


@runtime_checkable
class CropOp(Protocol):
    """Cuts a patch of one size out of every case; `num_samples` in a row come from the same case."""

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def size(self) -> Triple:
        """(D, H, W) of the patch."""

    @property
    def num_samples(self) -> int: ...

    @property
    def pad(self) -> bool:
        """Whether a case smaller than the patch lies in zeros; otherwise it is an error."""

    def start(self, key: Tensor, case: Tensor, shape: Tensor, sets: PointSets | None) -> Tensor:
        """(B, 3) int64 first voxel of each patch; negative where the case is smaller. shape: (B, 3) of each case."""


@runtime_checkable
class CentredCropOp(CropOp, Protocol):
    """Cuts patches around voxels that are selected by the values of a key."""

    @property
    def centred_on(self) -> str:
        """The key."""

    def sets(self, values: np.ndarray, image: np.ndarray | None, seed: int) -> list[np.ndarray]:
        """The point sets of a case, (P,) int32 linear indices each.

        values: (C, D, H, W) of `centred_on`. image: (C, D, H, W) of the crop's `image_key`, or None.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class _Crop(Checked):
    """What Hasten's own crops share; their `start` and `sets` are as in `CropOp` and `CentredCropOp`."""

    size: Size
    keys: tuple[str, ...] = ("image", "label")
    num_samples: Count = 1
    pad: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _LabelCrop(_Crop):
    label_key: str = "label"
    image_key: str | None = None
    image_threshold: float = 0.0

    @property
    def centred_on(self) -> str:
        return self.label_key


@dataclass(frozen=True, kw_only=True, slots=True)
class CropByPosNegLabel(_LabelCrop):
    """MONAI's RandCropByPosNegLabel: centred on foreground with pos / (pos + neg), else on background.

    image_key, image_threshold: background counts only where this image lies above. Of each case up to 65536 foreground
    and as many background voxels, drawn evenly, are remembered. ignore_index: a class that is neither.
    """

    pos: float = 1.0
    neg: float = 1.0
    ignore_index: int | None = None

    def check(self) -> None:
        if self.pos < 0 or self.neg < 0 or self.pos + self.neg == 0:
            raise ValueError(
                f"CropByPosNegLabel: pos={self.pos}, neg={self.neg}; neither is negative and one is above 0"
            )

    def sets(self, values: np.ndarray, image: np.ndarray | None, seed: int) -> list[np.ndarray]:
        # The first of several channels is the background, as in MONAI.
        foreground = np.asarray((values[1:] if len(values) > 1 else values).any(0))
        background = ~foreground
        if self.ignore_index is not None:
            annotated = (values != self.ignore_index).all(0)
            foreground, background = foreground & annotated, background & annotated
        if image is not None:
            background &= (image > self.image_threshold).any(0)
        return [_some(each, seed) for each in (foreground, background)]

    def start(self, key: Tensor, case: Tensor, shape: Tensor, sets: PointSets | None) -> Tensor:
        assert sets is not None
        total = float(self.pos + self.neg)
        return _around(sets, case, key, constant((self.pos / total, self.neg / total), key.device), shape, self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class CropByLabelClasses(_LabelCrop):
    """MONAI's RandCropByLabelClasses: centred on a voxel of a class drawn by `ratios` among those the case has."""

    num_classes: int
    ratios: tuple[float, ...] | None = None

    def check(self) -> None:
        if self.ratios is not None and (
            len(self.ratios) != self.num_classes or min(self.ratios) < 0 or sum(self.ratios) <= 0
        ):
            raise ValueError(
                f"CropByLabelClasses: ratios={self.ratios}; one for each of the {self.num_classes} classes is needed, "
                "none below 0 and not all 0"
            )

    def sets(self, values: np.ndarray, image: np.ndarray | None, seed: int) -> list[np.ndarray]:
        allowed = np.ones(values.shape[1:], bool) if image is None else (image > self.image_threshold).any(0)
        one_hot = len(values) == self.num_classes > 1
        masks = [values[number] > 0 if one_hot else values[0] == number for number in range(self.num_classes)]
        return [_some(mask & allowed, seed + number) for number, mask in enumerate(masks)]

    def start(self, key: Tensor, case: Tensor, shape: Tensor, sets: PointSets | None) -> Tensor:
        assert sets is not None
        ratios = self.ratios or (1.0,) * self.num_classes
        return _around(sets, case, key, constant(tuple(map(float, ratios)), key.device), shape, self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class SpatialCrop(_Crop):
    """MONAI's RandSpatialCrop and RandSpatialCropSamples with `random_size=False`: every place is equally likely."""

    def start(self, key: Tensor, case: Tensor, shape: Tensor, sets: PointSets | None) -> Tensor:
        return _anywhere(key, shape, self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class ForegroundCrop(_Crop):
    """The crop of a run: with `foreground_prob` centred on a voxel of a foreground class, else anywhere.

    The class is drawn evenly from those that the case has, then one of its remembered voxels; the patch is moved inward
    until it lies in the case. A case smaller than the patch lies wholly in it, at a random place. The voxels are those
    that prepared cases (an arena) remember of each class.
    """

    foreground_prob: Prob = 0.5
    pad: bool = True

    def start(self, key: Tensor, case: Tensor, shape: Tensor, sets: PointSets | None) -> Tensor:
        size = constant(self.size, key.device)
        slack = shape - size
        low, high = slack.clamp(max=0), slack.clamp(min=0)
        anywhere = low + below(random_words(key, _PLACE, 3), high - low + 1)
        if sets is None or not sets.points.shape[0] or self.foreground_prob == 0:
            return anywhere
        point, drawn = draw_point(sets, case, key, torch.ones(sets.num.shape[1], device=key.device))
        centred = torch.minimum(torch.maximum(voxel_of(point, shape) - size // 2, low), high)
        use = (uniform(key, _CHOICE, 1)[:, 0] < self.foreground_prob) & drawn
        return torch.where(use[:, None], centred, anywhere)


@dataclass(frozen=True, kw_only=True, slots=True)
class CentreCrop(_Crop):
    """MONAI's CenterSpatialCrop; with `pad`, its ResizeWithPadOrCrop with zeros."""

    def start(self, key: Tensor, case: Tensor, shape: Tensor, sets: PointSets | None) -> Tensor:
        size = constant(self.size, key.device)
        return torch.where(shape >= size, shape // 2 - size // 2, _middle(shape - size))


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


def voxel_of(point: Tensor, shape: Tensor) -> Tensor:
    """(B, 3) place in its case of each voxel given by its linear index. point: (B,) int64; shape: (B, 3)."""
    plane = shape[:, 1] * shape[:, 2]
    return torch.stack([point // plane, point % plane // shape[:, 2], point % shape[:, 2]], dim=1)


def _some(mask: np.ndarray, seed: int) -> np.ndarray:
    voxels = np.flatnonzero(mask)
    if voxels.size > _MAX_POINTS:
        voxels = np.random.default_rng(seed).choice(voxels, _MAX_POINTS, replace=False)
    return voxels.astype(np.int32)


def _middle(slack: Tensor) -> Tensor:
    """Start of a patch that has a smaller case in its centre, half a voxel earlier where the difference is odd."""
    return -((-slack) // 2)


def _anywhere(key: Tensor, shape: Tensor, patch: Triple) -> Tensor:
    slack = shape - constant(patch, key.device)
    return torch.where(slack < 0, _middle(slack), below(random_words(key, _PLACE, 3), slack.clamp(min=0) + 1))


def _around(sets: PointSets, case: Tensor, key: Tensor, ratios: Tensor, shape: Tensor, patch: Triple) -> Tensor:
    point, exists = draw_point(sets, case, key, ratios)
    size = constant(patch, key.device)
    slack = shape - size
    inside = torch.minimum((voxel_of(point, shape) - size // 2).clamp(min=0), slack.clamp(min=0))
    centred = torch.where(slack < 0, _middle(slack), inside)
    return torch.where(exists[:, None], centred, _anywhere(key, shape, patch))
