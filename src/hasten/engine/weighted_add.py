"""Adds a window's weighted scores to the sums of a cell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor

from hasten.engine.out_of_memory import out_of_memory_ends_block
from hasten.kernels.use import DTYPES, kernels_take

log = logging.getLogger(__name__)

_SMALLEST = 2**20
"""Scores below which launching either takes longer than the sums."""
_SIDE, _CALLS = 64, 8
"""Side of the cell on which the two are compared, and calls in a row, as of a window that covers so many cells."""
_SECONDS = 0.5
_LEAST = 0.02
"""Smallest gain that counts."""


def add_weighted(sums: Tensor, scores: Tensor, weight: Tensor) -> None:
    """sums += scores * weight, in place: (K, d, h, w) each of any float type and strides, and (d, h, w) float32.

    On a GPU by a Triton kernel, where that is certainly faster than torch's `addcmul_`: it is measured once for each
    device, number of classes, types and memory format, in up to half a second.
    """
    if scores.numel() >= _SMALLEST and sums.dtype in DTYPES and kernels_take(scores):
        from hasten.engine.weighted_add_triton import add_weighted_by_kernel, rows_alike

        last = scores.stride(0) == 1
        if rows_alike(sums, scores) and _kernel_pays(sums.device, len(sums), sums.dtype, scores.dtype, last):
            add_weighted_by_kernel(sums, scores, weight)
            return
    sums.addcmul_(scores, weight)


@cache
def _kernel_pays(device: torch.device, classes: int, sums: torch.dtype, scores: torch.dtype, last: bool) -> bool:
    """Whether the kernel is certainly faster on a cell within larger memory. last: classes lie next to each other."""
    from hasten.engine.measure import certainly_faster, compared
    from hasten.engine.weighted_add_triton import add_weighted_by_kernel

    pays = False
    with out_of_memory_ends_block(device.type == "cuda"):
        sides = (classes, _SIDE, _SIDE, 2 * _SIDE)
        layout = torch.channels_last_3d if last else torch.contiguous_format
        total, window = (
            torch.zeros(1, *sides, dtype=dtype, device=device).contiguous(memory_format=layout)[0, ..., :_SIDE]
            for dtype in (sums, scores)
        )
        weight = torch.ones(sides[1:], device=device)[..., :_SIDE]

        def repeated(add: Callable[[Tensor, Tensor, Tensor], object]) -> None:
            for _ in range(_CALLS):
                add(total, window, weight)

        calls = {"torch": partial(repeated, Tensor.addcmul_), "kernel": partial(repeated, add_weighted_by_kernel)}
        comparison = compared(calls, device, base="torch", seconds=_SECONDS, least=_LEAST)
        pays = certainly_faster(comparison, "kernel", device, least=_LEAST)
        log.info("weighted sums of windows: %s with a kernel", comparison.arms["kernel"])
    return pays
