"""Streaming Dice and IoU: three counts per case and class, nothing else is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hasten.evaluation.counts import confusion_counts
from hasten.nets.losses.regions import Members, region_masks


@dataclass(frozen=True, slots=True)
class Dice:
    """Dice and IoU of a validation, as MONAI's metrics (include_background=False, ignore_empty=True) define them.

    A class that a case's label does not hold is left out of that case. `mean` averages a case's classes, then the
    cases.
    """

    mean: float
    """nan if no case holds foreground."""
    per_class: dict[str, float]
    """Mean over the cases that hold the class; nan if none does."""
    per_case: tuple[float, ...]
    """Mean over the classes of each case; nan for a case without foreground."""
    iou: float
    """Like `mean`, of the intersection over union: of a case and class it is D / (2 - D)."""
    iou_per_class: dict[str, float]

    def value(self, metric: str) -> float:
        """The mean that `train.metric` names."""
        return self.iou if metric == "iou" else self.mean

    def record(self) -> dict[str, Any]:
        """What metrics.jsonl has of it."""
        dice = {"dice": self.mean, "dice_per_class": self.per_class}
        return {**dice, "iou": self.iou, "iou_per_class": self.iou_per_class}


def without_ignored(prediction: Tensor, label: Tensor, ignore_index: int | None) -> tuple[Tensor, Tensor]:
    """Prediction and label with background where the label is `ignore_index`, if that is not None.

    prediction: (D, H, W) class index, or (R, D, H, W) masks. label: (D, H, W).
    """
    if ignore_index is None:
        return prediction, label
    ignored = label == ignore_index
    return prediction.masked_fill(ignored, 0), label.masked_fill(ignored, 0)


def counts_of(
    prediction: Tensor, label: Tensor, *, num_classes: int, regions: Members = (), ignore_index: int | None = None
) -> Tensor:
    """(K, 3) int64 voxels of each foreground class, or each region where there are any: in both, predicted, labelled.

    prediction: (D, H, W) class index, or (R, D, H, W) bool masks of the regions. label: (D, H, W) class index; voxels
    labelled `ignore_index` are not counted. regions: class indices of each.
    """
    prediction, label = without_ignored(prediction, label, ignore_index)
    if regions:
        counts = confusion_counts(prediction[None], region_masks(label[None, None], regions))[0]
    else:
        counts = confusion_counts(prediction[None, None], label[None, None], num_classes)[0, 1:]
    both, extra, _, missed = counts.unbind(1)
    return torch.stack([both, both + extra, both + missed], dim=1)


def dice_of(counts: Tensor, class_names: list[str]) -> Dice:
    """counts: (N, K, 3) as `counts_of` gives them; class_names: K names of foreground classes, or of regions."""
    both, predicted, labelled = counts.to(torch.float64).unbind(-1)
    dice = torch.where(labelled > 0, 2 * both / (labelled + predicted).clamp(min=1), torch.nan)
    iou = torch.where(labelled > 0, both / (labelled + predicted - both).clamp(min=1), torch.nan)
    per_case = dice.nanmean(1)
    per_class = dice.nanmean(0)
    return Dice(
        mean=float(per_case.nanmean()),
        per_class=dict(zip(class_names, per_class.tolist(), strict=True)),
        per_case=tuple(per_case.tolist()),
        iou=float(iou.nanmean(1).nanmean()),
        iou_per_class=dict(zip(class_names, iou.nanmean(0).tolist(), strict=True)),
    )
