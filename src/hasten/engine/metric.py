"""Streaming Dice: three counts per case and class, nothing else is kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.engine.metrics.counts import confusion_counts


@dataclass(frozen=True, slots=True)
class Dice:
    """Dice of a validation, as MONAI's DiceMetric(include_background=False, ignore_empty=True) defines it.

    A class that a case's label does not hold is left out of that case. `mean` averages a case's classes, then the
    cases.
    """

    mean: float
    """nan if no case holds foreground."""
    per_class: dict[str, float]
    """Mean over the cases that hold the class; nan if none does."""
    per_case: tuple[float, ...]
    """Mean over the classes of each case; nan for a case without foreground."""


def overlap_counts(prediction: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """(K - 1, 3) int64 voxels of each foreground class: in both, predicted, labelled.

    prediction, label: class index of any integer type and one shape, (D, H, W).
    """
    counts = confusion_counts(prediction[None, None], label[None, None], num_classes)
    both, extra, _, missed = counts[0, 1:].unbind(1)
    return torch.stack([both, both + extra, both + missed], dim=1)


def dice_of(counts: Tensor, class_names: list[str]) -> Dice:
    """counts: (N, K - 1, 3) as `overlap_counts` gives them; class_names: K - 1 foreground names."""
    both, predicted, labelled = counts.to(torch.float64).unbind(-1)
    dice = torch.where(labelled > 0, 2 * both / (labelled + predicted).clamp(min=1), torch.nan)
    per_case = dice.nanmean(1)
    per_class = dice.nanmean(0)
    return Dice(
        mean=float(per_case.nanmean()),
        per_class=dict(zip(class_names, per_class.tolist(), strict=True)),
        per_case=tuple(per_case.tolist()),
    )
