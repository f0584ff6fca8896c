"""A metric that keeps a few numbers of each case on the device and reads nothing until it is aggregated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hasten.engine.metrics.gather import gather_rows

TensorOrList = Tensor | Sequence[Tensor]
"""A batch (B, K, ...), or a list of cases (K, ...) whose sizes may differ."""


class StreamedMetric:
    """Base class of the metrics, with MONAI's interface: `metric(y_pred, y)`, `aggregate()`, `get_buffer()`, `reset()`.

    `aggregate` and `get_buffer` put the cases of all ranks together: every rank must call them, also one without cases.
    `compute` is `aggregate` as Python numbers.
    """

    dtype = torch.float64
    """Of the rows."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._gathered: Tensor | None = None

    def rows(self, y_pred: Tensor, y: Tensor, **options: Any) -> Tensor:
        """What is kept of each case of a batch, (B, ...) of `dtype`."""
        raise NotImplementedError

    def values(self, rows: Tensor) -> Tensor:
        """The metric of each case, from its rows."""
        return rows

    def __call__(self, y_pred: TensorOrList, y: TensorOrList, **options: Any) -> Tensor:
        """Add a batch. Returns the metric of its cases, on the device. Shapes as the subclass says."""
        if isinstance(y_pred, Tensor) and isinstance(y, Tensor):
            rows = self.rows(y_pred, y, **options)
        else:
            pairs = list(zip(y_pred, y, strict=True))
            if not pairs:
                raise ValueError("y_pred, y: empty lists; give at least one case")
            rows = torch.cat(
                [
                    self.rows(case_pred.unsqueeze(0), case_label.unsqueeze(0), **options)
                    for case_pred, case_label in pairs
                ]
            )
        assert rows.dtype == self.dtype
        self._rows.append(rows)
        self._gathered = None
        return self.values(rows)

    def reset(self) -> None:
        self._rows, self._gathered = [], None

    def gathered(self) -> Tensor:
        """The rows of all ranks, (N, ...). Raises ValueError if there is none."""
        if self._gathered is None:
            self._gathered = gather_rows(torch.cat(self._rows) if self._rows else None, self.dtype)
        if self._gathered is None:
            raise ValueError(f"{type(self).__name__}: no case was counted since reset(); call it on a batch first")
        return self._gathered

    def get_buffer(self) -> Tensor:
        """The metric of each case, (N, ...) of all ranks, in their order."""
        return self.values(self.gathered())
