"""Shared parts of the losses: formats of scores and target, soft counts, cross-entropy."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor, nn

from hasten.kernels.use import kernels_take
from hasten.nets.losses.soft_counts import Counts, soft_counts

_MOST_CLASSES = 128
"""Most classes that a tile of the kernels holds."""


class OverlapOptions(TypedDict, total=False):
    """Arguments of every loss of counts, as `OverlapLoss` explains them."""

    to_onehot_y: bool
    softmax: bool
    include_background: bool
    batch: bool
    smooth_nr: float
    smooth_dr: float
    ignore_index: int | None


class OverlapLoss(nn.Module):
    """Base of the losses of soft counts; a subclass defines `score`. Arguments as in MONAI:

    to_onehot_y, softmax: must be True, the target being class index and the shares those of a soft-max; for any other
    form MONAI's own losses are as fast. include_background: whether class 0 counts. batch: sum over the batch before
    dividing. smooth_nr, smooth_dr: added to numerator and denominator. ignore_index: voxels of this label do not count;
    it need not be a class. The loss is a mean over samples and classes.
    """

    kernels = True
    """Count by Triton kernels on a GPU, where they take the scores."""
    over_ranks = False
    """Count the batches of all ranks as one, with `batch`. Set by `build_loss`; MONAI has none."""

    def __init__(
        self,
        *,
        to_onehot_y: bool = False,
        softmax: bool = False,
        include_background: bool = True,
        batch: bool = False,
        smooth_nr: float = 1e-5,
        smooth_dr: float = 1e-5,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__()
        if not (to_onehot_y and softmax):
            raise ValueError(
                f"to_onehot_y, softmax: {type(self).__name__} is of class index and a soft-max; set both True, or use "
                "monai.losses for one channel a class"
            )
        self.include_background, self.batch = include_background, batch
        self.smooth_nr, self.smooth_dr, self.ignore_index = smooth_nr, smooth_dr, ignore_index

    def score(self, counts: Counts) -> Tensor:
        """A loss for each sample and class (B, K), or each class (K,) with `batch`."""
        raise NotImplementedError

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """() loss. input: (B, K, ...) scores. target: (B, 1, ...) class index. ValueError if they do not fit."""
        check_shapes(input, target)
        with without_autocast(input):
            return self.of_counts(self._counts(input, target)[0])

    def of_counts(self, counts: Counts) -> Tensor:
        """The loss () of all K classes' (B, K) counts."""
        counts = counts if self.include_background else counts.foreground()
        if self.batch:
            counts = counts.over_batch().over_ranks() if self.over_ranks else counts.over_batch()
        return self.score(counts).mean()

    def with_entropy(self, input: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The loss (), and the cross-entropy () as torch has it, but 0 if all voxels are ignored."""
        check_shapes(input, target)
        with without_autocast(input):
            counts, surprise = self._counts(input, target, surprised=True)
            assert surprise is not None
            size = counts.labelled.sum()
            if self.ignore_index is not None:
                size = size.clamp(min=1.0)
            return self.of_counts(counts), surprise.sum() / size

    def by_kernels(self, scores: Tensor) -> bool:
        """Whether Triton kernels cover the call. scores: (B, K, ...)."""
        return self.kernels and scores.shape[1] <= _MOST_CLASSES and kernels_take(scores)

    def _counts(self, scores: Tensor, target: Tensor, *, surprised: bool = False) -> tuple[Counts, Tensor | None]:
        """`soft_counts`, of scores in float32 or more unless kernels convert them as they read."""
        kernels = self.by_kernels(scores)
        scores, target = (plain(scores), plain(target)) if kernels else lifted(scores, target)
        return soft_counts(scores, target, surprised=surprised, kernels=kernels, ignore_index=self.ignore_index)


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


def check_shapes(scores: Tensor, target: Tensor) -> None:
    """Raises ValueError unless scores (B, K, ...) of several classes have a target (B, 1, ...) of their size."""
    fits = scores.ndim > 2 and scores.shape[1] > 1 and target.shape == (len(scores), 1, *scores.shape[2:])
    if not fits:
        raise ValueError(
            f"target: shape {tuple(target.shape)} for scores of {tuple(scores.shape)}; give scores (B, K, ...) of 2 "
            "classes or more, and class index (B, 1, ...) of their size"
        )
