"""A metric that keeps a few numbers of each case on the device and reads nothing until it is aggregated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.nets.over_ranks import several_ranks

TensorOrList = Tensor | Sequence[Tensor]
"""A batch (B, K, ...), or a list of cases (K, ...) whose sizes may differ."""


class StreamedMetric:
    """Base class of the metrics, with MONAI's interface: `metric(y_pred, y)`, `aggregate()`, `get_buffer()`, `reset()`.

    `aggregate` and `get_buffer` put the cases of all ranks together: every rank must call them, also one without cases.
    `compute` is `aggregate` as Python numbers.
    """

    dtype = torch.float64
    """Type of the rows."""

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._gathered: Tensor | None = None

    def rows(self, y_pred: Tensor, y: Tensor, **options: Any) -> Tensor:
        """What is kept of each case of a batch, (B, ...) of `dtype`."""
        raise NotImplementedError

    def values(self, rows: Tensor) -> Tensor:
        """The metric of each case, (N, ...), from its rows (N, ...)."""
        return rows

    def __call__(self, y_pred: TensorOrList, y: TensorOrList, **options: Any) -> Tensor:
        """Add a batch. Returns the metric of its cases, on the device. Shapes as the subclass says."""
        if isinstance(y_pred, Tensor) and isinstance(y, Tensor):
            rows = self.rows(y_pred, y, **options)
        else:
            pairs = zip(y_pred, y, strict=True)
            cases = [self.rows(one.unsqueeze(0), other.unsqueeze(0), **options) for one, other in pairs]
            if not cases:
                raise ValueError("y_pred, y: empty lists; give at least one case")
            rows = torch.cat(cases)
        assert rows.dtype == self.dtype
        self._rows.append(rows)
        self._gathered = None
        return self.values(rows)

    def reset(self) -> None:
        self._rows, self._gathered = [], None

    def gathered(self) -> Tensor:
        """The rows of all ranks, (N, ...). Raises ValueError if there is none."""
        if self._gathered is None:
            self._gathered = gather_rows(torch.cat(self._rows) if self._rows else None)
        if self._gathered is None:
            raise ValueError(f"{type(self).__name__}: no case was counted since reset(); call it on a batch first")
        return self._gathered

    def get_buffer(self) -> Tensor:
        """The metric of each case, (N, ...) of all ranks, in their order."""
        return self.values(self.gathered())


def choice(name: str, value: object, allowed: Sequence[str]) -> str:
    """MONAI's enum or its text, as text. Raises ValueError for another than those allowed."""
    if str(value) not in allowed:
        raise ValueError(f"{name}: {str(value)!r}; use one of {', '.join(allowed)}")
    return str(value)


def gather_rows(rows: Tensor | None) -> Tensor | None:
    """(n, ...) of this rank, n different on each, as (sum of n, ...) in the order of the ranks; None if none has any.

    Every rank must call it, also one that has no rows (None). Raises ValueError on all ranks if their rows differ in
    shape.
    """
    if not several_ranks():
        return rows
    gathered: list[Tensor | None] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, None if rows is None else rows.cpu())
    parts = [part for part in gathered if part is not None]
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"ranks hold rows of different shapes {sorted(shapes)}; give all the same number of classes")
    return torch.cat(parts).to(parts[0].device if rows is None else rows.device) if parts else None


def counts_over_ranks(counts: Tensor | None) -> Tensor | None:
    """Counts of one shape on every rank that has any, added up. Every rank must call it."""
    gathered = gather_rows(None if counts is None else counts.unsqueeze(0))
    return None if gathered is None else gathered.sum(0)
