"""Reduction of values over cases and classes, as in MONAI, but in float64 and independent of the order of cases."""

from __future__ import annotations

import torch
from torch import Tensor

REDUCTIONS = ("none", "mean", "sum", "mean_batch", "sum_batch", "mean_channel", "sum_channel")


def reduction_of(reduction: object) -> str:
    """MONAI's enum or its text, as text. Raises ValueError for another."""
    name = str(reduction)
    if name not in REDUCTIONS:
        raise ValueError(f"reduction: {name!r}; use one of {', '.join(REDUCTIONS)}")
    return name


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
        case "mean_batch":
            return _mean(_sum_of_cases(values), valid.sum(0)), valid.sum(0).double()
        case "sum_batch":
            return _sum_of_cases(values), valid.sum(0).double()
        case "mean_channel":
            return _mean(values.sum(1), valid.sum(1)), valid.sum(1).double()
        case _:
            return values.sum(1), valid.sum(1).double()


def _mean(total: Tensor, number: Tensor) -> Tensor:
    return torch.where(number > 0, total / number.clamp(min=1), 0.0)


def _sum_of_cases(values: Tensor) -> Tensor:
    # Floating-point addition depends on the order, and the order on how many ranks share the cases.
    return values.sort(0).values.sum(0)
