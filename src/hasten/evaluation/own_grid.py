"""Label maps of validation cases on the images' own voxels, where preparation resampled them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hasten.cache.memory import available_memory
from hasten.cases.labels import IGNORED, read_label_values, to_class_index
from hasten.cases.types import Case
from hasten.evaluation.dice import counts_of
from hasten.nets.losses.regions import Members
from hasten.prepare.orient import orient
from hasten.prepare.types import Geometry

_MEMORY_SHARE = 8
"""Label maps are kept while they take at most this part of the free memory; others are read for each validation."""


class OwnLabels:
    """Label maps of cases on the voxels of their files, turned and cropped as the prepared cases are."""

    def __init__(self, labels: dict[int, str], *, ignore: int | None, regions: Members) -> None:
        """labels: label value to class name. ignore: a label value. regions: as for `counts_of`."""
        self._labels, self._ignore, self._regions = labels, ignore, regions
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
        case_labels = label, self._counts(None, torch.from_numpy(rest))[:, 2]
        if label.numel() <= self._room:
            self._room -= label.numel()
            self._kept[case.id] = case_labels
        return case_labels

    def _counts(self, prediction: Tensor | None, label: Tensor) -> Tensor:
        """Counts as `counts_of` gives them; None predicts background everywhere."""
        if prediction is None:
            lead, dtype = ((len(self._regions),), torch.bool) if self._regions else ((), label.dtype)
            prediction = label.new_zeros((*lead, *label.shape), dtype=dtype)
        ignore_index = None if self._ignore is None else IGNORED
        return counts_of(
            prediction, label, num_classes=len(self._labels), regions=self._regions, ignore_index=ignore_index
        )


def is_resampled(geometry: Geometry) -> bool:
    """Whether the prepared case has other voxels than its file."""
    return geometry.shape != geometry.crop_shape
