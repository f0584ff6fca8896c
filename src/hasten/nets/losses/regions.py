"""Losses of overlapping classes ("regions"): one sigmoid each, against masks that are made from the class index.

One differentiable operation in few passes. Its derivative is written out: with p = sigmoid(z), masks t and the
gradients a, b, c of hit, predicted and entropy, it is dL/dz = p (1 - p) (a t + b) + c (p - t).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hasten.nets.losses.modules import focal_sums
from hasten.nets.losses.overlap import OverlapLoss, lifted, without_autocast
from hasten.nets.losses.soft_counts import Counts

Members = Sequence[Sequence[int]]
"""Class indices of each region, rising."""


def region_masks(label: Tensor, members: Members) -> Tensor:
    """(B, R, ...) bool, the voxels of each region, on the label's device. label: (B, 1, ...) class index.

    Compares with numbers that the host knows: no copy to the device and no synchronization. One or two for each run of
    neighbouring indices, so that "all classes from 2 on" costs one pass.
    """
    return torch.cat([_mask(label, indices) for indices in members], dim=1)


def _mask(label: Tensor, indices: Sequence[int]) -> Tensor:
    mask: Tensor | None = None
    for low, high in _runs(indices):
        run = label == low if low == high else (label >= low) & (label <= high)
        mask = run if mask is None else mask | run
    assert mask is not None, "an empty region"
    return mask


def _runs(indices: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbours in rising numbers."""
    first = previous = indices[0]
    for index in indices[1:]:
        if index != previous + 1:
            yield first, previous
            first = index
        previous = index
    yield first, previous


def _of_the_wrong(scores: Tensor, target: Tensor) -> Tensor:
    """Scores of the wrong answer, negated where the target is 1: sums of them are exact where the right one is sure.

    A product, which takes a CPU a third of the time of `torch.where`.
    """
    return scores * torch.rsub(target, 1, alpha=2)


class _SigmoidCounts(torch.autograd.Function):
    """Three counts, and the binary cross-entropy if `entropy`, else None."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, masks: Tensor, entropy: bool) -> tuple[Tensor | None, ...]:
        flat, flat_masks = scores.flatten(2), masks.flatten(2)
        target = flat_masks.to(flat.dtype)
        share = flat.sigmoid()
        surprise = F.softplus(_of_the_wrong(flat, target)).sum(2) if entropy else None
        hit, predicted, labelled = torch.linalg.vecdot(share, target), share.sum(2), target.sum(2)
        ctx.mark_non_differentiable(labelled)
        ctx.save_for_backward(share, flat_masks)
        ctx.shape, ctx.entropy = scores.shape, entropy
        return hit, predicted, labelled, surprise

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, to_hit: Tensor, to_predicted: Tensor, _: Any, to_entropy: Tensor | None
    ) -> tuple[Tensor, None, None]:
        share, flat_masks = ctx.saved_tensors
        target = flat_masks.to(share.dtype)
        grad_scores = torch.addcmul(to_predicted.unsqueeze(2), target, to_hit.unsqueeze(2))
        grad_scores.mul_(share).mul_(1 - share)
        if ctx.entropy:
            assert to_entropy is not None
            grad_scores.addcmul_(share - target, to_entropy.unsqueeze(2))
        return grad_scores.reshape(ctx.shape), None, None


def sigmoid_counts(scores: Tensor, masks: Tensor, *, entropy: bool = False) -> tuple[Counts, Tensor | None]:
    """Counts (B, R) of the sigmoid of the scores, and with `entropy` the binary cross-entropy (B, R) over space.

    scores: (B, R, ...) float32 or float64. masks: (B, R, ...) bool. Differentiable once, in scores.
    """
    *counts, surprise = _SigmoidCounts.apply(scores, masks, entropy)
    return Counts(*counts), surprise


class RegionLoss(nn.Module):
    """An overlap loss of regions, and what is added to it: nothing, the binary cross-entropy or the focal loss.

    overlap: scores a region's soft counts; every region counts, as there is no background among them. members: class
    indices of each region. gamma: of the focal loss. The second term is a mean over samples, regions and voxels.
    Voxels labelled `ignore_index` of `overlap`, which is no member of a region, are in neither term.
    """

    def __init__(
        self,
        overlap: OverlapLoss,
        members: Members,
        *,
        second: Literal["entropy", "focal"] | None = None,
        gamma: float = 2.0,
    ) -> None:
        super().__init__()
        self.overlap, self.second, self.gamma = overlap, second, gamma
        self.members = tuple(tuple(sorted(set(indices))) for indices in members)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """() loss. input: (B, R, ...) scores of any float type. target: (B, 1, ...) class index, any integer type.

        Raises ValueError if they do not fit.
        """
        if input.shape[1] != len(self.members) or target.shape != (len(input), 1, *input.shape[2:]):
            raise ValueError(
                f"target: shape {tuple(target.shape)} for scores of {tuple(input.shape)}; give (B, 1, ...) class "
                f"index, and one channel of scores for each of the {len(self.members)} regions"
            )
        with without_autocast(input):
            scores, label = lifted(input, target)
            masks = region_masks(label, self.members)
            size: int | Tensor = scores.numel()
            if self.overlap.ignore_index is not None:
                ignored = label == self.overlap.ignore_index
                size = (ignored.numel() - ignored.sum()).clamp(min=1) * len(self.members)
                # Their share is then 0, as are both second terms and all derivatives; they are in no region.
                scores = scores.masked_fill(ignored, -torch.inf)
            counts, entropy = sigmoid_counts(scores, masks, entropy=self.second == "entropy")
            overlap = self.overlap.of_counts(counts)
            if entropy is not None:
                return overlap + entropy.sum() / size
            if self.second is None:
                return overlap
            signed = _of_the_wrong(scores, masks.to(scores.dtype)).flatten(2)
            return overlap + focal_sums(signed, gamma=self.gamma).sum() / size
