"""The metrics as ignite handlers, which replace MONAI's handlers of the same names.

`key_val_metric={"val_mean_dice": MeanDice(include_background=False, output_transform=from_engine(["pred", "label"]))}`.
output_transform: from `engine.state.output` to (y_pred, y), batches or lists of cases. save_details: put the values of
each case in `engine.state.metric_details`. The other arguments are those of the metric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from monai.handlers import IgniteMetricHandler

from hasten.evaluation.overlap import ConfusionMatrixMetric, DiceMetric
from hasten.evaluation.overlap import MeanIoU as MeanIoUMetric
from hasten.evaluation.rocauc import ROCAUCMetric, VoxelROCAUC
from hasten.evaluation.surface import HausdorffDistanceMetric, SurfaceDiceMetric

OutputTransform = Callable[[Any], Any]


def _as_it_is(output: Any) -> Any:
    return output


class MeanDice(IgniteMetricHandler):
    def __init__(
        self,
        include_background: bool = True,
        reduction: object = "mean",
        num_classes: int | None = None,
        output_transform: OutputTransform = _as_it_is,
        save_details: bool = True,
        return_with_label: bool | Sequence[str] = False,
    ) -> None:
        metric = DiceMetric(include_background, reduction, num_classes=num_classes, return_with_label=return_with_label)
        super().__init__(metric, output_transform=output_transform, save_details=save_details)


class MeanIoU(IgniteMetricHandler):
    """MONAI's MeanIoUHandler."""

    def __init__(
        self,
        include_background: bool = True,
        reduction: object = "mean",
        num_classes: int | None = None,
        output_transform: OutputTransform = _as_it_is,
        save_details: bool = True,
    ) -> None:
        metric = MeanIoUMetric(include_background, reduction, num_classes=num_classes)
        super().__init__(metric, output_transform=output_transform, save_details=save_details)


class ConfusionMatrix(IgniteMetricHandler):
    """metric_name: one of MONAI's, such as accuracy, sensitivity, specificity, precision."""

    def __init__(
        self,
        include_background: bool = True,
        metric_name: str = "hit_rate",
        compute_sample: bool = False,
        reduction: object = "mean",
        num_classes: int | None = None,
        output_transform: OutputTransform = _as_it_is,
        save_details: bool = True,
    ) -> None:
        metric = ConfusionMatrixMetric(
            include_background, metric_name, compute_sample, reduction, num_classes=num_classes
        )
        self.metric_name = metric_name
        super().__init__(metric, output_transform=output_transform, save_details=save_details)


class ROCAUC(IgniteMetricHandler):
    """bins: resolution of the histogram of voxel scores; None keeps every score, for classification."""

    def __init__(
        self, average: object = "macro", bins: int | None = None, output_transform: OutputTransform = _as_it_is
    ) -> None:
        metric = ROCAUCMetric(average) if bins is None else VoxelROCAUC(average, bins)
        super().__init__(metric, output_transform=output_transform, save_details=False)


class HausdorffDistance(IgniteMetricHandler):
    def __init__(
        self,
        include_background: bool = False,
        distance_metric: str = "euclidean",
        percentile: float | None = None,
        directed: bool = False,
        reduction: object = "mean",
        num_classes: int | None = None,
        output_transform: OutputTransform = _as_it_is,
        save_details: bool = True,
    ) -> None:
        metric = HausdorffDistanceMetric(
            include_background, distance_metric, percentile, directed, reduction, num_classes=num_classes
        )
        super().__init__(metric, output_transform=output_transform, save_details=save_details)


class SurfaceDice(IgniteMetricHandler):
    """MONAI has no such handler."""

    def __init__(
        self,
        class_thresholds: Sequence[float],
        include_background: bool = False,
        distance_metric: str = "euclidean",
        reduction: object = "mean",
        num_classes: int | None = None,
        output_transform: OutputTransform = _as_it_is,
        save_details: bool = True,
    ) -> None:
        metric = SurfaceDiceMetric(
            class_thresholds, include_background, distance_metric, reduction, num_classes=num_classes
        )
        super().__init__(metric, output_transform=output_transform, save_details=save_details)
