"""MixUp and CutMix: operations that mix the samples of a batch.

The result depends on which samples share a batch: with another batch size, or another number of processes, a sample
gets another partner. The draws of a sample (its weight, its box) stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.chain import Batch
from hasten.augment.op import Drawn, Operation, Prob, spread, used
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words, uniform

_WEIGHT, _ORDER, _CORNER = 1, 2, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class _Mix(Operation):
    prob: Prob = 1.0
    alpha: float = 1.0

    def check(self) -> None:
        if not self.keys:
            raise ValueError(f"{type(self).__name__}: keys={self.keys}; name at least one entry of the batch")
        if not 0.0 < self.alpha < math.inf:
            raise ValueError(f"{type(self).__name__}: alpha={self.alpha}; Beta(alpha, alpha) needs a positive number")

    def weight_and_order(self, key: Tensor) -> Drawn:
        weight = _symmetric_beta(uniform(key, _WEIGHT, 2), self.alpha)
        return {
            "weight": torch.where(used(key, self.prob), weight, 1.0),
            # Drawn per sample: the number of other samples is not known before the batch is assembled.
            "order": random_words(key, _ORDER, 1)[:, 0],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class MixUp(_Mix):
    """weight * sample + (1 - weight) * partner, the partners being a permutation of the batch.

    `drawn`: weight (B,) from Beta(alpha, alpha), 1 where `prob` leaves a sample as it is; order (B,) int64, whose
    argsort gives the partners. MONAI's MixUp (Zhang et al. 2018), for all of `keys` alike. Depends on how samples are
    grouped into batches. Classes can't be averaged: those of `label_keys`, (B, 1, *S), become shares (B, num_classes,
    *S) float32, and all 0 where a value is not one of the classes; a loss for soft labels is needed then. With
    `num_classes` channels they are taken as shares already.
    """

    label_keys: tuple[str, ...] = ()
    num_classes: int | None = None

    def check(self) -> None:
        _Mix.check(self)
        absent = [key for key in self.label_keys if key not in self.keys]
        if absent:
            raise ValueError(
                f'MixUp: label_keys: "{absent[0]}" is not among keys={self.keys}, which name all that is mixed'
            )
        if self.label_keys and (self.num_classes is None or self.num_classes < 2):
            raise ValueError(
                f"MixUp: num_classes={self.num_classes}; label_keys={self.label_keys} hold classes, which can't be "
                "averaged: give the number of classes, background included, or use CutMix"
            )

    def draw_batch(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return self.weight_and_order(key)

    def apply_batch(self, batch: Batch, drawn: Mapping[str, Tensor]) -> Batch:
        """The batch, (B, C, *S) by key, with its `keys` mixed.

        Raises ValueError naming a key that holds integers and is not among `label_keys`, or a label key with neither 1
        nor `num_classes` channels.
        """
        partner = torch.argsort(drawn["order"], stable=True)
        result = dict(batch)
        for key in self.keys:
            value = self._shares(key, batch[key]) if key in self.label_keys else _floating(key, batch[key])
            weight = spread(drawn["weight"], value)
            # A weight of 1 alone would let NaN and infinity of the partner through, and turn -0 into 0.
            result[key] = torch.where(weight < 1.0, torch.lerp(value[partner], value, weight), value)
        return result

    def _shares(self, key: str, label: Tensor) -> Tensor:
        if label.shape[1] == self.num_classes:
            return label.to(torch.float32)
        if label.shape[1] != 1:
            raise ValueError(
                f'MixUp: "{key}" has {label.shape[1]} channels; num_classes={self.num_classes} needs 1 channel of '
                f"classes or {self.num_classes} of shares"
            )
        assert self.num_classes is not None
        classes = torch.arange(self.num_classes, dtype=label.dtype, device=label.device)
        return (label == spread(classes[None], label)).to(torch.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class CutMix(_Mix):
    """Pastes a box of the partner into each sample, the partners being a permutation of the batch.

    `drawn`: weight (B,) from Beta(alpha, alpha), 1 where `prob` leaves a sample as it is; order (B,) int64, whose
    argsort gives the partners; corner (B, n) int64, the first voxel of the box in n axes of space. A side of the box
    is sqrt(1 - weight) of the patch's, cut off at its end. MONAI's CutMix (Yun et al. 2019), for all of `keys` alike,
    labels included, which stay classes; but each sample has a corner of its own, where MONAI has one a batch. Depends
    on how samples are grouped into batches.
    """

    keys: tuple[str, ...] = ("image", "label")

    def draw_batch(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        sides = constant(tuple(shape[1:]), key.device)
        corner = below(random_words(key, _CORNER, len(shape) - 1), sides)
        return {**self.weight_and_order(key), "corner": corner}

    def apply_batch(self, batch: Batch, drawn: Mapping[str, Tensor]) -> Batch:
        """The batch, (B, C, *S) by key, with boxes pasted.

        Raises ValueError naming a key that covers other voxels than the first.
        """
        partner = torch.argsort(drawn["order"], stable=True)
        sides = batch[self.keys[0]].shape[2:]
        inside = _box(drawn["weight"], drawn["corner"], tuple(sides))
        result = dict(batch)
        for key in self.keys:
            value = batch[key]
            if value.shape[2:] != sides:
                raise ValueError(
                    f'CutMix: "{key}" has {tuple(value.shape[2:])} voxels and "{self.keys[0]}" {tuple(sides)}; the '
                    "same box is pasted into all keys, so they must cover the same voxels"
                )
            result[key] = torch.where(inside, value[partner], value)
        return result


def _symmetric_beta(uniforms: Tensor, alpha: float) -> Tensor:
    """(B,) of Beta(alpha, alpha) from (B, 2) numbers in [0, 1), without rejection.

    t / sqrt(1 + t * t) with t of Student's distribution (2 alpha degrees, unscaled), and that by Bailey's polar method
    (Math. Comp. 62, 1994), where nothing is rejected if the angle is drawn itself.
    """
    first = uniforms[:, 0] + 0.5 / (1 << 24)
    cosine = torch.cos(uniforms[:, 1] * (2 * math.pi))
    square = torch.expm1(torch.log(first).abs() / alpha) * (cosine * cosine)
    # (1 - t / sqrt(1 + t * t)) / 2, written so that a small one keeps its digits.
    smaller = 0.5 / ((1.0 + square) * (1.0 + 1.0 / torch.sqrt(1.0 + 1.0 / square)))
    return torch.where(cosine < 0.0, smaller, 1.0 - smaller)


def _floating(key: str, value: Tensor) -> Tensor:
    if not value.is_floating_point():
        raise ValueError(
            f'MixUp: "{key}" holds {str(value.dtype).removeprefix("torch.")}, which can\'t be averaged; name it in '
            "label_keys and give num_classes, or use CutMix"
        )
    return value.to(torch.float32)


def _box(weight: Tensor, corner: Tensor, sides: tuple[int, ...]) -> Tensor:
    """(B, 1, *S) bool: the voxels that are pasted."""
    share = torch.sqrt(1.0 - weight)
    inside = torch.ones(1, dtype=torch.bool, device=weight.device)
    for axis, side in enumerate(sides):
        first = corner[:, axis, None]
        last = torch.ceil(first + side * share[:, None])
        at = torch.arange(side, device=weight.device)
        along = (at >= first) & (at < last)
        inside = inside & along.view(-1, 1, *[side if other == axis else 1 for other in range(len(sides))])
    return inside
