"""Shared parts of the losses: target formats, class weights, reductions, soft counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from hasten.kernels.use import kernels_take
from hasten.nets.losses.soft_counts import Counts, counts_of, soft_counts

Reduction = Literal["mean", "sum", "none"]
Weight = Sequence[float] | float | Tensor | None

_MOST_CLASSES = 128
"""Most classes that a tile of the kernels holds."""


class OverlapOptions(TypedDict, total=False):
    """Arguments of every loss of counts, as `OverlapLoss` explains them."""

    include_background: bool
    to_onehot_y: bool
    sigmoid: bool
    softmax: bool
    other_act: Callable[[Tensor], Tensor] | None
    """Scores (B, K, ...) to shares of the same shape."""
    reduction: Reduction
    smooth_nr: float
    smooth_dr: float
    batch: bool
    soft_label: bool
    ignore_index: int | None


class OverlapLoss(nn.Module):
    """Base of the losses of soft counts; a subclass defines `score`. Arguments as in MONAI:

    include_background: whether class 0 counts. to_onehot_y: the target is class index. sigmoid, softmax, other_act:
    how scores become shares; at most one. squared_pred: squares in the denominator. reduction: over samples and
    classes. smooth_nr, smooth_dr: added to numerator and denominator. batch: sum over the batch before dividing.
    soft_label: the target has shares between 0 and 1, of which the hit is counted as the smaller of the two shares.
    ignore_index: voxels of this label do not count; it need not be a class.

    Scores of one channel have no soft-max, classes or background: such arguments are ignored with a warning, as in
    MONAI.
    """

    kernels = True
    """Count by Triton kernels on a GPU, where they take the scores; see `fused_loss`."""
    over_ranks = False
    """Count the batches of all ranks as one, with `batch`. Set by `build_loss`; MONAI has none."""

    def __init__(
        self,
        *,
        include_background: bool = True,
        to_onehot_y: bool = False,
        sigmoid: bool = False,
        softmax: bool = False,
        other_act: Callable[[Tensor], Tensor] | None = None,
        squared_pred: bool = False,
        reduction: Reduction = "mean",
        smooth_nr: float = 1e-5,
        smooth_dr: float = 1e-5,
        batch: bool = False,
        soft_label: bool = False,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__()
        if sigmoid + softmax + (other_act is not None) > 1:
            raise ValueError("sigmoid, softmax, other_act: more than one is given; choose one")
        check_reduction(reduction)
        self.include_background, self.to_onehot_y, self.batch = include_background, to_onehot_y, batch
        self.sigmoid, self.softmax, self.other_act = sigmoid, softmax, other_act
        self.squared_pred, self.soft_label, self.ignore_index = squared_pred, soft_label, ignore_index
        self.reduction: Reduction = reduction
        self.smooth_nr, self.smooth_dr = smooth_nr, smooth_dr

    def score(self, counts: Counts) -> Tensor:
        """A loss for each sample and class (B, K), or each class (K,) with `batch`."""
        raise NotImplementedError

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """() loss; with reduction "none" (B, K, 1, ...), or (K, 1, ...) with `batch`.

        input: (B, K, ...) scores. target: (B, 1, ...) class index, or (B, K, ...). ValueError if they do not fit.
        """
        check_spatial(input, batch=self.batch)
        with without_autocast(input):
            return self.of_counts(self.counts(*self.lifted(input, target)), input.ndim)

    def of_counts(self, counts: Counts, ndim: int) -> Tensor:
        """The loss of all K classes' (B, K) counts. ndim: of the scores."""
        counts = counts if self.include_background else counts.foreground()
        if self.batch:
            counts = counts.over_batch().over_ranks() if self.over_ranks else counts.over_batch()
        return self.reduced(self.score(counts), ndim)

    def reduced(self, score: Tensor, ndim: int) -> Tensor:
        """`score`, (B, K) or (K,), reduced to (); with reduction "none" as it is, with `ndim` - 2 axes of 1 behind."""
        value = reduced(score, self.reduction)
        return value if self.reduction != "none" else value.reshape(*value.shape, *[1] * (ndim - 2))

    def fused(self, scores: Tensor, target: Tensor) -> bool:
        """Whether `soft_counts` covers the call. scores: (B, K, ...); target: (B, 1, ...) or (B, K, ...)."""
        return self.softmax and not self.squared_pred and indexed(self, scores, target)

    def by_kernels(self, scores: Tensor, target: Tensor) -> bool:
        """Whether Triton kernels cover the call. scores: (B, K, ...); target: (B, 1, ...) or (B, K, ...)."""
        supported = self.kernels and scores.shape[1] <= _MOST_CLASSES and kernels_take(scores)
        return supported and self.fused(scores, target)

    def lifted(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and target as plain tensors, scores in float32 or more unless kernels convert them as they read.

        scores: (B, K, ...); target: (B, 1, ...) or (B, K, ...).
        """
        if self.by_kernels(scores, target):
            return plain(scores), plain(target)
        return lifted(scores, target)

    def counts(self, scores: Tensor, target: Tensor) -> Counts:
        """Counts (B, K) of all classes."""
        if self.fused(scores, target):
            kernels = self.by_kernels(scores, target)
            return soft_counts(scores, target, kernels=kernels, ignore_index=self.ignore_index)
        hot, mask = prepared(scores, target, to_onehot_y=self.to_onehot_y, ignore_index=self.ignore_index)
        warn_of_one_channel(
            scores, softmax=self.softmax, to_onehot_y=self.to_onehot_y, include_background=self.include_background
        )
        share = self.activated(scores)
        if mask is not None:
            share, hot = share * mask, hot * mask
        return counts_of(share, hot, squared=self.squared_pred, soft=self.soft_label)

    def activated(self, scores: Tensor) -> Tensor:
        """Shares (B, K, ...) of scores (B, K, ...)."""
        if self.softmax:
            return scores if scores.shape[1] == 1 else scores.softmax(1)
        if self.sigmoid:
            return scores.sigmoid()
        return self.other_act(scores) if self.other_act is not None else scores


def warn_of_one_channel(scores: Tensor, *, to_onehot_y: bool, include_background: bool, softmax: bool = False) -> None:
    """Warn about arguments that have no effect with one channel of scores, (B, 1, ...)."""
    if scores.shape[1] > 1 or torch.compiler.is_compiling():
        return
    ignored = {
        "softmax=True": softmax,
        "to_onehot_y=True": to_onehot_y,
        "include_background=False": not include_background,
    }
    for name in (name for name, set_so in ignored.items() if set_so):
        warnings.warn(f"single channel prediction, `{name}` ignored.", stacklevel=3)


def lifted(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The scores in float32 (float64 as they are), and both as plain tensors, without MONAI's metadata.

    scores, target: of any shape.
    """
    scores = plain(scores)
    return scores if scores.dtype == torch.float64 else scores.float(), plain(target)


def plain(value: Tensor) -> Tensor:
    """`value`, of any shape, as a plain tensor, without metadata such as MONAI's."""
    return value if type(value) is Tensor else value.as_subclass(Tensor)


def without_autocast(scores: Tensor) -> torch.autocast:
    """Autocast off on the device of `scores`, of any shape.

    It would take some of the sums over a volume in half precision, which is too coarse for them.
    """
    return torch.autocast(scores.device.type, enabled=False)


def indexed(loss: nn.Module, scores: Tensor, target: Tensor) -> bool:
    """Whether the target is class index, (B, 1, ...), of scores (B, K, ...) with K above 1.

    Raises ValueError for a target that does not fit, where `to_onehot_y` asks for class index.
    """
    if not loss.to_onehot_y or scores.shape[1] == 1:
        return False
    check_shapes(scores, target)
    return target.shape[1] == 1


def prepared(
    scores: Tensor, target: Tensor, *, to_onehot_y: bool, ignore_index: int | None
) -> tuple[Tensor, Tensor | None]:
    """The target as (B, K, ...) in the scores' dtype, and (B, 1, ...) 1 where a voxel counts, None if all do."""
    mask = None if ignore_index is None else counted(target, ignore_index).to(scores.dtype)
    classes = scores.shape[1]
    if to_onehot_y and classes > 1:
        index = target.long()
        if ignore_index is not None and not 0 <= ignore_index < classes:
            index = index.masked_fill(index == ignore_index, 0)
        target = torch.zeros_like(scores).scatter_(1, index, 1.0)
    if target.shape != scores.shape:
        raise ValueError(
            f"target: shape {tuple(target.shape)} for scores of {tuple(scores.shape)}; "
            "give class index (B, 1, ...) with to_onehot_y=True, or one channel for each class"
        )
    return target.to(scores.dtype), mask


def counted(target: Tensor, ignore_index: int) -> Tensor:
    """(B, 1, ...) bool. Of a one-hot target, `ignore_index` is a channel, or else stands for voxels of no channel."""
    if target.shape[1] == 1:
        return target != ignore_index
    if 0 <= ignore_index < target.shape[1]:
        return target[:, ignore_index : ignore_index + 1] == 0
    return target.sum(1, keepdim=True) > 0


def class_weight(weight: Weight) -> Tensor | None:
    """`weight` as a float32 tensor, (K,), or () for one number. Raises ValueError if one is below 0."""
    if weight is None:
        return None
    weights = torch.as_tensor(weight, dtype=torch.float32)
    if bool((weights < 0).any()):
        raise ValueError(f"weight: {weights.tolist()}; a class weight is 0 or more")
    return weights


def weighted(values: Tensor, weight: Tensor | None) -> Tensor:
    """values (..., K) times the weight of each class; raises ValueError for another number of classes."""
    if weight is None:
        return values
    if weight.ndim and weight.shape[0] != values.shape[-1]:
        raise ValueError(
            f"weight: {weight.shape[0]} for {values.shape[-1]} classes that count; "
            "give one for each (none for the background with include_background=False)"
        )
    return values * weight.to(values)


def reduced(values: Tensor, reduction: Reduction) -> Tensor:
    """Values of any shape reduced to (), or with "none" as they are."""
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


def cross_entropy(
    counts: Counts, surprise: Tensor, weight: Tensor | None, reduction: Reduction, ignore_index: int | None
) -> Tensor:
    """torch's cross-entropy from the result of `surprised_counts`, but 0 if all voxels are ignored. weight: (K,)."""
    total, size = surprise.sum(0), counts.labelled.sum(0)
    total, size = weighted(total, weight), weighted(size, weight)
    if reduction == "sum":
        return total.sum()
    whole = size.sum()
    return total.sum() / (whole if ignore_index is None else whole.clamp(min=torch.finfo(whole.dtype).eps))


def check_reduction(reduction: str, supported: tuple[str, ...] = ("mean", "sum", "none")) -> None:
    if reduction not in supported:
        raise ValueError(f"reduction: {reduction!r}; use one of {', '.join(supported)}")


def check_terms(loss: OverlapLoss, **factors: float) -> None:
    """Check a loss of two terms: raises ValueError for a negative factor, and a reduction that they don't share."""
    check_reduction(loss.reduction, ("mean", "sum"))
    check_factors(**factors)


def check_factors(**factors: float) -> None:
    """Raises ValueError for one below 0."""
    for name, factor in factors.items():
        if factor < 0:
            raise ValueError(f"{name}: {factor}; give 0 or more")


def check_spatial(scores: Tensor, *, batch: bool) -> None:
    """Raises ValueError for scores (B, K) unless `batch`: a sample without voxels has nothing to count."""
    if scores.ndim < (2 if batch else 3):
        raise ValueError(
            f"scores: shape {tuple(scores.shape)}; an overlap is of scores (B, K, ...) with at least one spatial axis, "
            "or of (B, K) with batch=True"
        )


def check_shapes(scores: Tensor, target: Tensor) -> None:
    """Raises ValueError unless scores (B, K, ...) have a target (B, 1, ...) or (B, K, ...) of their size."""
    same = scores.ndim == target.ndim and scores.shape[2:] == target.shape[2:] and scores.shape[0] == target.shape[0]
    if not same or target.shape[1] not in (1, scores.shape[1]):
        raise ValueError(
            f"target: shape {tuple(target.shape)} for scores of {tuple(scores.shape)}; "
            f"give (B, 1, ...) class index or (B, {scores.shape[1]}, ...), of the scores' size"
        )
