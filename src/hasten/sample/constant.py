"""Small constants, created on the device."""

from __future__ import annotations

from itertools import groupby

import torch
from torch import Tensor


def constant(values: tuple[float, ...] | tuple[int, ...], device: torch.device) -> Tensor:
    """(n,) float32 or int64, as the values are. `torch.tensor` would copy them from the host, which a GPU waits for."""
    dtype = torch.int64 if all(isinstance(value, int) for value in values) else torch.float32
    runs = [torch.full((len(list(run)),), value, dtype=dtype, device=device) for value, run in groupby(values)]
    return runs[0] if len(runs) == 1 else torch.cat(runs)
