"""Confusion counts of each case and class, from which the overlap metrics are computed."""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.nets.losses.overlap import plain


def confusion_counts(y_pred: Tensor, y: Tensor, num_classes: int | None = None) -> Tensor:
    """(B, K, 4) int64 on the device of `y_pred`: true positives, false positives, true negatives, false negatives.

    y_pred, y: each (B, K, ...) with one channel a class, where what is not 0 is held, or (B, 1, ...) class index.
    num_classes: K; None takes the channels of `y_pred`, of which one alone is 1 where the only class is held. A label
    that is no class is of none. No device value is read. Raises ValueError where the shapes do not fit.
    """
    y_pred, y = plain(y_pred).detach(), plain(y).detach().to(y_pred.device)
    classes = num_classes or y_pred.shape[1]
    _check(y_pred, y, classes)
    mapped = y_pred.shape[1] == y.shape[1] == 1
    one = _of_label_maps if mapped and y_pred.device.type == "cpu" else _of_masks
    counts = torch.stack([one(case_pred, case_label, classes) for case_pred, case_label in zip(y_pred, y, strict=True)])
    hit, predicted, labelled = counts.unbind(2)
    missed = labelled - hit
    total = y_pred[0, 0].numel()
    return torch.stack([hit, predicted - hit, total - predicted - missed, missed], dim=2)


def masks(channels: Tensor, classes: int) -> list[Tensor]:
    """A bool mask (...) for each class of one sample (K, ...) or (1, ...) of class index."""
    if channels.shape[0] == 1:
        return [channels[0] == number for number in (range(classes) if classes > 1 else [1])]
    return [channel != 0 for channel in channels]


def _of_masks(predicted: Tensor, labelled: Tensor, classes: int) -> Tensor:
    # Whole-tensor counts: on a CPU several times as fast as sums over some of the axes, and exact for any size.
    pairs = zip(masks(predicted, classes), masks(labelled, classes), strict=True)
    return torch.stack(
        [torch.stack([torch.count_nonzero(each) for each in (one & other, one, other)]) for one, other in pairs]
    )


def _of_label_maps(predicted: Tensor, labelled: Tensor, classes: int) -> Tensor:
    # One pass for all classes. Not for a GPU: there bincount waits for the largest index.
    first = int(classes == 1)
    base = classes + first + 2
    predicted_map, labelled_map = (
        (side.to(torch.int32).clamp(-1, base - 2) + 1).reshape(-1) for side in (predicted, labelled)
    )
    table = torch.bincount(labelled_map * base + predicted_map, minlength=base**2).view(base, base)
    return torch.stack([table.diagonal(), table.sum(0), table.sum(1)], dim=1)[1 + first : -1]


def _check(y_pred: Tensor, y: Tensor, classes: int) -> None:
    shapes = f"y_pred {tuple(y_pred.shape)}, y {tuple(y.shape)}"
    if y_pred.ndim < 2 or y_pred.shape[0] != y.shape[0] or y_pred.shape[2:] != y.shape[2:]:
        raise ValueError(f"y_pred, y: shapes do not fit: {shapes}; give both (B, K, ...) or (B, 1, ...) of one size")
    if any(side.shape[1] not in (1, classes) for side in (y_pred, y)):
        raise ValueError(
            f"y_pred, y: {shapes}; each needs one channel for each of the {classes} classes, or 1 of class index; "
            "with class index in y_pred give num_classes"
        )
