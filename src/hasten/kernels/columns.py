# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""Columns of a matrix copied into columns of another, in Triton. Importing this needs Triton; see `use.triton_runs`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_TILE = 4096
"""Elements that a program copies."""


@triton.jit
def copy_columns_kernel(
    source, target, rows, width, source_stride, target_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """target[r, c] = source[r, c] for all rows and `width` columns."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < width)
    values = tl.load(source + row * source_stride + column, mask)
    tl.store(target + row * target_stride + column, values, mask)


def copy_columns(source: Tensor, target: Tensor) -> None:
    """target.copy_(source) of matrices (R, C) of one type whose rows are contiguous."""
    rows, width = source.shape
    columns = triton.next_power_of_2(width)
    height = max(1, _TILE // columns)
    with torch.cuda.device_of(source):
        copy_columns_kernel[(triton.cdiv(rows, height),)](
            source, target, rows, width, source.stride(0), target.stride(0), ROWS=height, COLUMNS=columns,
            num_warps=4 if columns <= _TILE else 8,
        )  # fmt: skip
