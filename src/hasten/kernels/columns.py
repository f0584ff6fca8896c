# mypy: disallow-untyped-defs = False, disallow-incomplete-defs = False
"""Columns of a matrix copied into columns of another, in Triton. Importing this needs Triton; see `use.triton_runs`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hasten.kernels.use import power_of_two

_TILE = 4096
"""Elements that a program copies."""
_COLUMNS = 64
"""Columns that a program copies at most, so that few kernels are built."""


@triton.jit
def copy_columns_kernel(
    source, target, rows, width, source_stride, target_stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """target[r, c] = source[r, c] for all rows and `width` columns."""
    blocks = tl.cdiv(width, COLUMNS)
    row = (tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = (tl.program_id(0) % blocks) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    mask = (row < rows) & (column < width)
    values = tl.load(source + row * source_stride + column, mask)
    tl.store(target + row * target_stride + column, values, mask)


def copy_columns(source: Tensor, target: Tensor) -> None:
    """target.copy_(source) of matrices (R, C) of one type whose rows are contiguous."""
    rows, width = source.shape
    columns = min(power_of_two(width), _COLUMNS)
    height = _TILE // columns
    with torch.cuda.device_of(source):
        copy_columns_kernel[(triton.cdiv(rows, height) * triton.cdiv(width, columns),)](
            source, target, rows, width, source.stride(0), target.stride(0), ROWS=height, COLUMNS=columns
        )
