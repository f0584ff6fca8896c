"""Area under the ROC curve, streamed: exact from kept scores, or of voxels from a histogram with a known error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.evaluation.counts import masks
from hasten.evaluation.streamed import StreamedMetric, choice, counts_over_ranks
from hasten.nets.losses.overlap import plain

_AVERAGES = ("macro", "weighted", "micro", "none")


class ROCAUCMetric(StreamedMetric):
    """MONAI's ROCAUCMetric: exact, ties counting half, by sorting on the device. Keeps every score.

    average: over classes; "macro", "weighted" by the labelled samples, "micro" of all pooled, or "none". Takes scores
    and labels (B, K), (B, 1) or (B,), 0 and 1. A class with positives alone, or negatives alone, or another label, is
    nan. Raises ValueError for scores with space: `VoxelROCAUC` is for those.
    """

    def __init__(self, average: object = "macro") -> None:
        super().__init__()
        self.average = choice("average", average, _AVERAGES)

    def rows(self, y_pred: Tensor, y: Tensor, **options: Any) -> Tensor:
        """(B, K, 2): score, and 1, 0, or -1 for a label that is neither."""
        score, label = (plain(side).detach().double() for side in (y_pred, y))
        if max(score.ndim, label.ndim) > 2:
            raise ValueError(
                f"y_pred, y: shapes {tuple(score.shape)}, {tuple(label.shape)} have space, and every score would be "
                "kept; use VoxelROCAUC, which keeps a histogram"
            )
        score, label = (side.reshape(len(side), -1) for side in (score, label))
        if score.shape != label.shape:
            raise ValueError(f"y_pred, y: shapes {tuple(score.shape)} and {tuple(label.shape)} differ; give them alike")
        label = label.to(score.device)
        return torch.stack([score, torch.where((label == 0) | (label == 1), label, -1.0)], dim=2)

    def aggregate(self, average: object = None) -> Tensor:
        """() float64 on the device, or (K,) with "none". Raises ValueError without a case."""
        chosen = self.average if average is None else choice("average", average, _AVERAGES)
        score, label = self.gathered().unbind(2)
        if chosen == "micro":
            score, label = score.reshape(-1, 1), label.reshape(-1, 1)
        return _averaged(auc_of(score, label), label.clamp(min=0).sum(0), chosen)

    def compute(self) -> float | list[float]:
        return self.aggregate().tolist()


class VoxelROCAUC:
    """The area under the ROC curve of voxels, from how many fall in each of `bins` between `low` and `high`.

    Keeps (K, 2, bins) integers, whatever the number of voxels. Scores outside count in the outer bins. Only pairs of a
    positive and a negative voxel in the same bin are uncertain, and count half, as ties do: `error_bound` says how far
    off the area can be, and is mostly below 1e-4 with soft-max shares. `metric(y_pred, y)` takes scores (B, K, ...) and
    labels (B, K, ...) or class index (B, 1, ...), or lists of cases; the rest is as `ROCAUCMetric`.
    """

    def __init__(self, average: object = "macro", bins: int = 8192, low: float = 0.0, high: float = 1.0) -> None:
        if bins < 2 or not low < high:
            raise ValueError(f"bins, low, high: {bins}, {low}, {high}; give 2 bins or more, and low below high")
        self.average, self.bins, self.low, self.high = choice("average", average, _AVERAGES), bins, low, high
        self._counts: Tensor | None = None

    def reset(self) -> None:
        self._counts = None

    def __call__(self, y_pred: Any, y: Any) -> None:
        for score, label in zip(y_pred, y, strict=True):
            self._count(plain(score).detach(), plain(label).detach())

    def _count(self, score: Tensor, label: Tensor) -> None:
        classes = len(score)
        if score.shape[1:] != label.shape[1:] or len(label) not in (1, classes):
            raise ValueError(
                f"y_pred, y: cases of shape {tuple(score.shape)}, {tuple(label.shape)} do not fit; "
                "give (K, ...) scores and (K, ...) or (1, ...) labels"
            )
        rows = [
            tally(self._place(channel, mask), 2 * self.bins).view(2, self.bins)
            for channel, mask in zip(score, masks(label.to(score.device), classes), strict=True)
        ]
        counts = torch.stack(rows)
        self._counts = counts if self._counts is None else self._counts + counts

    def _place(self, score: Tensor, positive: Tensor) -> Tensor:
        place = ((score.float() - self.low) * (self.bins / (self.high - self.low))).long().clamp_(0, self.bins - 1)
        return place.add_(positive, alpha=self.bins).reshape(-1)

    def _total(self, average: str) -> Tensor:
        counts = counts_over_ranks(self._counts)
        if counts is None:
            raise ValueError("VoxelROCAUC: no case was counted since reset(); call it on a batch first")
        return (counts.sum(0, keepdim=True) if average == "micro" else counts).double()

    def aggregate(self, average: object = None) -> Tensor:
        """() float64 on the device, or (K,) with "none", over all ranks. Raises ValueError without a case."""
        chosen = self.average if average is None else choice("average", average, _AVERAGES)
        negative, positive = self._total(chosen).unbind(1)
        below = negative.cumsum(1) - negative
        won = (positive * (below + negative / 2)).sum(1)
        return _averaged(won / (positive.sum(1) * negative.sum(1)), positive.sum(1), chosen)

    def error_bound(self) -> Tensor:
        """How much `aggregate` may differ from the exact area, of the same shape."""
        negative, positive = self._total(self.average).unbind(1)
        tied = (positive * negative).sum(1) / 2
        return _averaged(tied / (positive.sum(1) * negative.sum(1)), positive.sum(1), self.average)

    def compute(self) -> float | list[float]:
        return self.aggregate().tolist()


def auc_of(score: Tensor, label: Tensor) -> Tensor:
    """(K,) float64: the chance that a positive's score is above a negative's, ties half. score, label: (N, K).

    From the ranks of the positives (Mann and Whitney), whose doubles are integers.
    """
    score = score.t().contiguous()
    positive = (label.t() == 1).long()
    ordered = score.sort(1).values
    twice = torch.searchsorted(ordered, score) + torch.searchsorted(ordered, score, right=True) + 1
    number = positive.sum(1)
    won = (twice * positive).sum(1) - number * (number + 1)
    auc = won.double() / 2 / (number * (score.shape[1] - number))
    return torch.where((label < 0).any(0) | score.isnan().any(1), torch.nan, auc)


def tally(index: Tensor, size: int) -> Tensor:
    """(size,) int64: how often each of 0..size-1 is in `index` (N,) int64. Waits for no value on a GPU."""
    if index.device.type == "cpu":
        return torch.bincount(index, minlength=size)
    return tally_by_adding(index, size)


def tally_by_adding(index: Tensor, size: int) -> Tensor:
    """(size,) int64: how often each of 0..size-1 is in `index` (N,) int64, by adding ones; any device."""
    one = torch.ones((), dtype=torch.int64, device=index.device)
    return torch.zeros(size, dtype=torch.int64, device=index.device).scatter_add_(0, index, one.expand_as(index))


def _averaged(area: Tensor, positives: Tensor, average: str) -> Tensor:
    if average == "weighted" and len(area) > 1:
        return (area * positives).sum() / positives.sum()
    return area if average == "none" and len(area) > 1 else area.mean()
