"""Differentiable sums over the ranks of a job."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed


def several_ranks() -> bool:
    """Whether this process shares its work with others by torch.distributed."""
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


class _Sum(torch.autograd.Function):
    """The sum over ranks; so is its gradient, a product where that is the same on all of them (`alike`)."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, alike: bool) -> Tensor:
        ctx.alike = alike
        return _total(value.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * distributed.get_world_size() if ctx.alike else _total(gradient), None


def sum_over_ranks(value: Tensor) -> Tensor:
    """`value`, of any shape, summed over the ranks; each rank may use the sum in its own way."""
    return _Sum.apply(value, False)


def counts_over_ranks(counts: Tensor) -> Tensor:
    """Sum counts of equal shape over all ranks, for a loss that each rank computes from the same sums.

    The gradients of the ranks must be averaged afterwards, as DistributedDataParallel does: they are then those of one
    process with the whole batch. The backward pass communicates nothing.
    """
    return _Sum.apply(counts, True) if several_ranks() else counts


def _total(value: Tensor) -> Tensor:
    total = value.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total)
    return total
