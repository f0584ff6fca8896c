"""Maps in channels-last as rows of channels, in the same memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory formats by the number of dimensions."""


def as_rows(image: Tensor) -> Tensor:
    """(B, C, *S) in channels-last as (B * prod(S), C)."""
    return image.movedim(1, -1).reshape(-1, image.shape[1])


def as_maps(rows: Tensor, batch: int, sides: Sequence[int]) -> Tensor:
    """(B * prod(S), C) as (B, C, *S) in channels-last."""
    return rows.view(batch, *sides, rows.shape[1]).movedim(-1, 1)
