"""Dice, IoU and the metrics of the confusion matrix, streamed: MONAI's classes of the same names, from exact counts.

Predictions and labels are each one channel a class (B, K, ...), 0 and 1, or class index (B, 1, ...), or lists of cases
without B. num_classes: K, needed where `y_pred` is class index; None takes its channels. One channel without
num_classes is 1 where the only class is held. include_background: whether class 0 counts (always, if it is the only).
Of MONAI's arguments, ignore_index and per_component are not supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hasten.evaluation.counts import confusion_counts
from hasten.evaluation.streamed import StreamedMetric, choice


class CountedMetric(StreamedMetric):
    """A metric of the four counts of each case and class, reduced over both."""

    dtype = torch.int64

    def __init__(
        self,
        include_background: bool = True,
        reduction: object = "mean",
        get_not_nans: bool = False,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        self.include_background, self.num_classes = include_background, num_classes
        self.reduction, self.get_not_nans = choice("reduction", reduction, REDUCTIONS), get_not_nans

    def rows(self, y_pred: Tensor, y: Tensor, **options: Any) -> Tensor:
        counts = confusion_counts(y_pred, y, self.num_classes)
        return counts if self.include_background or counts.shape[1] == 1 else counts[:, 1:]


class OverlapMetric(CountedMetric):
    """A value for each case and class, nan where it does not count.

    reduction: MONAI's names; "mean" averages a case's classes, then the cases. ignore_empty: leave a class out of a
    case whose label lacks it; else it is 1 if not predicted, and 0 if predicted. get_not_nans: `aggregate` gives
    (metric, number of values that count). return_with_label: with reduction "mean_batch", `aggregate` gives a dict of
    numbers of 4 digits, named as listed or "label_1", ...
    """

    def __init__(
        self,
        include_background: bool = True,
        reduction: object = "mean",
        get_not_nans: bool = False,
        ignore_empty: bool = True,
        num_classes: int | None = None,
        return_with_label: bool | Sequence[str] = False,
    ) -> None:
        super().__init__(include_background, reduction, get_not_nans, num_classes)
        self.ignore_empty, self.return_with_label = ignore_empty, return_with_label

    def aggregate(self, reduction: object = None) -> Any:
        """The metric over all cases of all ranks, float64 on the device. Raises ValueError without a case."""
        chosen = self.reduction if reduction is None else choice("reduction", reduction, REDUCTIONS)
        scores, number = reduce_values(self.get_buffer(), chosen)
        named = self._named(scores) if self.return_with_label and chosen == "mean_batch" else scores
        return (named, number) if self.get_not_nans else named

    def compute(self) -> Any:
        """`aggregate` without the count, as a number, a list, or a dict with return_with_label."""
        scores = self.aggregate()
        scores = scores[0] if self.get_not_nans else scores
        return scores.tolist() if isinstance(scores, Tensor) else scores

    def _named(self, scores: Tensor) -> dict[str, float]:
        if isinstance(self.return_with_label, bool):
            names = [f"label_{number}" for number in range(1 - self.include_background, len(scores) + 1)]
        else:
            names = list(self.return_with_label)
            if len(names) != len(scores):
                raise ValueError(f"return_with_label: {len(names)} names for {len(scores)} classes; give one for each")
        return {name: round(value, 4) for name, value in zip(names, scores.tolist(), strict=False)}


class DiceMetric(OverlapMetric):
    """2 |P & L| / (|P| + |L|) of each case and class, (B, K) float64. Arguments: see `OverlapMetric`."""

    def values(self, rows: Tensor) -> Tensor:
        hit, extra, _, missed = rows.double().unbind(2)
        return _counting(2 * hit, 2 * hit + extra + missed, hit + missed, self.ignore_empty)


class MeanIoU(OverlapMetric):
    """|P & L| / |P | L| of each case and class, (B, K) float64. Arguments: see `OverlapMetric`."""

    def values(self, rows: Tensor) -> Tensor:
        hit, extra, _, missed = rows.double().unbind(2)
        return _counting(hit, hit + extra + missed, hit + missed, self.ignore_empty)


def _counting(part: Tensor, whole: Tensor, labelled: Tensor, ignore_empty: bool) -> Tensor:
    ratio = torch.where(whole > 0, part / whole, 1.0)
    return torch.where(labelled > 0, ratio, torch.nan) if ignore_empty else ratio


class ConfusionMatrixMetric(CountedMetric):
    """Accuracy, sensitivity, specificity, precision and the rest of MONAI's names, in `metric_name`, one or several.

    compute_sample: the metric of each case and class, then the reduction; False reduces the counts first. Cases
    without space, (B, K), are counted too, and always reduced first.
    """

    def __init__(
        self,
        include_background: bool = True,
        metric_name: str | Sequence[str] = "hit_rate",
        compute_sample: bool = False,
        reduction: object = "mean",
        get_not_nans: bool = False,
        num_classes: int | None = None,
    ) -> None:
        super().__init__(include_background, reduction, get_not_nans, num_classes)
        self.metric_name = (metric_name,) if isinstance(metric_name, str) else tuple(metric_name)
        self.compute_sample = compute_sample
        from monai.metrics.confusion_matrix import check_confusion_matrix_metric_name

        for name in self.metric_name:
            try:
                check_confusion_matrix_metric_name(name)
            except NotImplementedError:
                raise ValueError(
                    f"metric_name: {name!r} is none; such are accuracy, sensitivity, specificity, precision, f1_score"
                ) from None

    def rows(self, y_pred: Tensor, y: Tensor, **options: Any) -> Tensor:
        if y_pred.ndim == 2 or (y_pred.ndim == 3 and y_pred.shape[-1] == 1):
            self.compute_sample = False
        return super().rows(y_pred, y)

    def values(self, rows: Tensor) -> Tensor:
        """(N, K, 4) counts."""
        return rows.double()

    def aggregate(self, compute_sample: bool = False, reduction: object = None) -> list[Any]:
        """One float64 tensor on the device for each metric name, or (metric, number) with get_not_nans."""
        from monai.metrics import compute_confusion_matrix_metric

        chosen = self.reduction if reduction is None else choice("reduction", reduction, REDUCTIONS)
        counts = self.get_buffer()
        results = []
        for name in self.metric_name:
            if compute_sample or self.compute_sample:
                scores, number = reduce_values(compute_confusion_matrix_metric(name, counts), chosen)
            else:
                reduced, number = reduce_values(counts, chosen)
                scores = compute_confusion_matrix_metric(name, reduced)
            results.append((scores, number) if self.get_not_nans else scores)
        return results

    def compute(self) -> Any:
        """The number of the only metric name (a list where the reduction leaves several), or a dict of them."""
        results = [scores[0] if self.get_not_nans else scores for scores in self.aggregate()]
        numbers = [scores.squeeze().tolist() for scores in results]
        return numbers[0] if len(numbers) == 1 else dict(zip(self.metric_name, numbers, strict=True))


REDUCTIONS = ("none", "mean", "sum", "mean_batch", "sum_batch", "mean_channel", "sum_channel")


def reduce_values(values: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """values (N, C, ...) float64, nan where a case does not count, reduced; and how many counted, of the same shape.

    "mean" averages a case's classes, then the cases that have any; `_batch` is over the cases of each class,
    `_channel` over the classes of each case. A mean of nothing is 0. Bit-identical for any order of the cases.
    """
    valid = ~values.isnan()
    if reduction == "none":
        return values, valid.double()
    values = values.masked_fill(~valid, 0.0)
    match reduction:
        case "mean":
            each, number = _mean(values.sum(1), valid.sum(1)), valid.sum(1)
            counting = (number > 0).sum(0)
            return _mean(_sum_of_cases(each), counting), counting.double()
        case "sum":
            return _sum_of_cases(values.sum(1)), valid.sum((0, 1)).double()
        case "mean_batch" | "sum_batch":
            total, number = _sum_of_cases(values), valid.sum(0)
        case _:
            total, number = values.sum(1), valid.sum(1)
    return _mean(total, number) if reduction.startswith("mean") else total, number.double()


def _mean(total: Tensor, number: Tensor) -> Tensor:
    return torch.where(number > 0, total / number.clamp(min=1), 0.0)


def _sum_of_cases(values: Tensor) -> Tensor:
    # Floating-point addition depends on the order, and the order on how many ranks share the cases.
    return values.sort(0).values.sum(0)
