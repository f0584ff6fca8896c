"""Counts of each case and class, and the Dice and IoU that they give: nothing else of a case is kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from hasten.cases.labels import IGNORED, read_label_values, to_class_index
from hasten.cases.types import Case
from hasten.nets.losses.regions import Members, region_masks
from hasten.nets.over_ranks import several_ranks
from hasten.observe.cores import available_memory
from hasten.prepare.orient import orient
from hasten.prepare.types import Geometry

Labels = TypeVar("Labels", Tensor, np.ndarray)


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


def without_ignored(prediction: Labels, label: Labels, ignore: int | None) -> tuple[Labels, Labels]:
    """Prediction and label with background where the label is `ignore`, if that is not None: voxels that don't count.

    prediction: (D, H, W) labels, or (R, D, H, W) masks. label: (D, H, W).
    """
    if ignore is None:
        return prediction, label
    counts = label != ignore
    return prediction * counts, label * counts


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
    return Dice(
        mean=float(per_case.nanmean()),
        per_class=dict(zip(class_names, dice.nanmean(0).tolist(), strict=True)),
        per_case=tuple(per_case.tolist()),
        iou=float(iou.nanmean(1).nanmean()),
        iou_per_class=dict(zip(class_names, iou.nanmean(0).tolist(), strict=True)),
    )


def confusion_counts(y_pred: Tensor, y: Tensor, num_classes: int | None = None) -> Tensor:
    """(B, K, 4) int64 on the device: true positives, false positives, true negatives, false negatives.

    y_pred, y: masks (B, K, ...), where what is not 0 is held; with num_classes (K) both (B, 1, ...) class index, of
    which a number that is no class counts for none. No device value is read.
    """
    count = _of_masks
    if num_classes and y_pred.device.type == "cpu":
        count = _of_label_maps
    counts = torch.stack([count(predicted, label, num_classes) for predicted, label in zip(y_pred, y, strict=True)])
    hit, predicted, labelled = counts.unbind(2)
    missed = labelled - hit
    total = y_pred[0, 0].numel()
    return torch.stack([hit, predicted - hit, total - predicted - missed, missed], dim=2)


def _of_masks(predicted: Tensor, labelled: Tensor, classes: int | None) -> Tensor:
    # Whole-tensor counts: on a CPU several times as fast as sums over some of the axes, and exact for any size.
    sides = [
        [side[0] == number for number in range(classes)] if classes else [channel != 0 for channel in side]
        for side in (predicted, labelled)
    ]
    return torch.stack(
        [
            torch.stack([torch.count_nonzero(each) for each in (one & other, one, other)])
            for one, other in zip(*sides, strict=True)
        ]
    )


def _of_label_maps(predicted: Tensor, labelled: Tensor, classes: int | None) -> Tensor:
    # One pass for all classes. Not for a GPU: there bincount waits for the largest index.
    assert classes is not None
    base = classes + 2
    predicted_map, labelled_map = (
        (side.to(torch.int32).clamp(-1, classes) + 1).reshape(-1) for side in (predicted, labelled)
    )
    table = torch.bincount(labelled_map * base + predicted_map, minlength=base**2).view(base, base)
    return torch.stack([table.diagonal(), table.sum(0), table.sum(1)], dim=1)[1:-1]


def added_over_ranks(counts: Tensor) -> Tensor:
    """Counts of one shape on every rank, added up. Every rank must call it."""
    if not several_ranks():
        return counts
    gathered: list[Tensor | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, counts.cpu())
    return torch.stack([part for part in gathered if part is not None]).sum(0).to(counts.device)


_MEMORY_SHARE = 8
"""Label maps are kept while they take at most this part of the free memory; others are read for each validation."""


class OwnLabels:
    """Label maps of cases on the voxels of their files, turned and cropped as the prepared cases are."""

    def __init__(self, labels: dict[int, str], *, ignore: int | None, regions: Members) -> None:
        """labels: label value to class name. ignore: a label value. regions: as for `counts_of`."""
        self._labels, self._ignore, self._regions = labels, ignore, regions
        ignore_index = None if ignore is None else IGNORED
        self._counts = partial(counts_of, num_classes=len(labels), regions=regions, ignore_index=ignore_index)
        self._kept: dict[str, tuple[Tensor, Tensor]] = {}
        self._room = available_memory() // _MEMORY_SHARE

    def counts(self, prediction: Tensor, case: Case, geometry: Geometry) -> Tensor:
        """(K, 3) as `counts_of` gives them, of a prediction on the voxels of geometry.crop_shape.

        Labelled voxels outside the box count as missed. Raises ValueError for a label file that changed.
        """
        label, outside = self._kept.get(case.id) or self._read(case, geometry)
        counts = self._counts(prediction, label.to(prediction.device))
        counts[:, 2] += outside.to(counts.device)
        return counts

    def _read(self, case: Case, geometry: Geometry) -> tuple[Tensor, Tensor]:
        """The label map in the box, and (K,) labelled voxels of each class outside."""
        assert case.label is not None
        volume = read_label_values(case.label, self._labels, self._ignore)
        index = to_class_index(volume.array[0], self._labels, case.label, self._ignore)
        if index.shape != geometry.source_shape:
            raise ValueError(f"{case.label}: was changed during the run; its shape is now {index.shape} (D, H, W)")
        whole = orient(index, geometry.permute, geometry.flip)
        box = tuple(slice(a, a + n) for a, n in zip(geometry.crop_start, geometry.crop_shape, strict=True))
        label, rest = torch.from_numpy(np.array(whole[box])), np.array(whole)
        rest[box] = 0
        nothing = torch.zeros((*([len(self._regions)] if self._regions else ()), *rest.shape), dtype=torch.bool)
        case_labels = label, self._counts(nothing, torch.from_numpy(rest))[:, 2]
        if label.numel() <= self._room:
            self._room -= label.numel()
            self._kept[case.id] = case_labels
        return case_labels


def is_resampled(geometry: Geometry) -> bool:
    """Whether the prepared case has other voxels than its file."""
    return geometry.shape != geometry.crop_shape
