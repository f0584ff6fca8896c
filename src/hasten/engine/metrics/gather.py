"""Gathers rows from all ranks, which may have different numbers of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.nets.over_ranks import several_ranks

_MOST_AXES = 6


def gather_rows(rows: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(n, ...) of this rank, n different on each, as (sum of n, ...) in the order of the ranks; None if none has any.

    Every rank must call it, also one that has no rows (None). dtype: that of the rows, on all ranks. Raises ValueError
    on all ranks if their rows differ in shape.
    """
    if not several_ranks():
        return rows
    device = _device()
    header = torch.zeros(2 + _MOST_AXES, dtype=torch.int64)
    if rows is not None:
        assert rows.dtype == dtype
        header[: 1 + rows.ndim] = torch.tensor([rows.ndim, *rows.shape])
    headers = [row.tolist() for row in _all_gather(header.to(device))]
    shapes = {tuple(row[2 : 1 + row[0]]) for row in headers if row[0]}
    if not shapes:
        return None
    if len(shapes) > 1:
        raise ValueError(f"ranks hold rows of different shapes {sorted(shapes)}; give all the same number of classes")
    lengths = [row[1] for row in headers]
    padded = torch.zeros(max(lengths), *shapes.pop(), dtype=dtype, device=device)
    if rows is not None:
        padded[: len(rows)] = rows
    parts = [part[:length] for part, length in zip(_all_gather(padded), lengths, strict=True)]
    return torch.cat(parts).to(rows.device if rows is not None else device)


def counts_over_ranks(counts: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Counts of one shape on every rank that has any, added up. Every rank must call it."""
    gathered = gather_rows(None if counts is None else counts.unsqueeze(0), dtype)
    return None if gathered is None else gathered.sum(0)


def _all_gather(tensor: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


def _device() -> torch.device:
    """The device on which the process group communicates."""
    if dist.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
