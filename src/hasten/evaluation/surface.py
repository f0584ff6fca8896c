"""Distances of surfaces by MONAI, case by case; the values stream, the computation reads the device and takes scipy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hasten.evaluation.counts import masks
from hasten.evaluation.overlap import OverlapMetric
from hasten.nets.losses.overlap import plain


class SurfaceMetric(OverlapMetric):
    """A value for each case and class that MONAI computes. Shapes as in `hasten.evaluation.overlap`.

    `metric(y_pred, y, spacing=...)`: spacing in mm, as MONAI takes it: of all cases, or one for each of a batch.
    """

    dtype = torch.float64
    function: str
    """Name of the function in `monai.metrics`."""
    arguments: dict[str, Any]
    """Arguments of that function, besides the images, spacing and include_background."""

    def rows(self, y_pred: Tensor, y: Tensor, spacing: Any = None, **options: Any) -> Tensor:
        import monai.metrics

        classes = self.num_classes or y_pred.shape[1]
        compute = getattr(monai.metrics, self.function)
        sides = (_one_hot(each, classes) for each in (y_pred, y))
        values = compute(*sides, include_background=self.include_background, spacing=spacing, **self.arguments)
        return values.double()

    def values(self, rows: Tensor) -> Tensor:
        return rows


class HausdorffDistanceMetric(SurfaceMetric):
    """MONAI's: the largest distance between the surfaces, or its `percentile` (95 for HD95), in the unit of spacing.

    A class that neither holds is nan and does not count; one that only one of both holds is infinite.
    """

    function = "compute_hausdorff_distance"

    def __init__(
        self,
        include_background: bool = False,
        distance_metric: str = "euclidean",
        percentile: float | None = None,
        directed: bool = False,
        reduction: object = "mean",
        get_not_nans: bool = False,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(include_background, reduction, get_not_nans, num_classes=num_classes)
        self.arguments = {"distance_metric": distance_metric, "percentile": percentile, "directed": directed}


class SurfaceDiceMetric(SurfaceMetric):
    """MONAI's normalised surface Dice: the share of both surfaces within `class_thresholds` (one a class) of the other.

    A class that neither holds is nan and does not count.
    """

    function = "compute_surface_dice"

    def __init__(
        self,
        class_thresholds: Sequence[float],
        include_background: bool = False,
        distance_metric: str = "euclidean",
        reduction: object = "mean",
        get_not_nans: bool = False,
        use_subvoxels: bool = False,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(include_background, reduction, get_not_nans, num_classes=num_classes)
        self.arguments = {
            "class_thresholds": list(class_thresholds),
            "distance_metric": distance_metric,
            "use_subvoxels": use_subvoxels,
        }


def _one_hot(channels: Tensor, classes: int) -> Tensor:
    """(B, K, ...) bool of one channel a class, or of class index (B, 1, ...)."""
    return torch.stack([torch.stack(masks(sample, classes)) for sample in plain(channels).detach()])
