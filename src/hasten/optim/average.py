"""Exponential moving average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def average_of(network: nn.Module) -> nn.Module:
    """A copy of `network` that `update_average` moves towards it."""
    average = copy.deepcopy(network)
    average.requires_grad_(False)
    return average.eval()


def average_share(step: int, decay: float) -> float:
    """How far the average moves towards the weights after 0-based `step`.

    The memory grows with the run, min(decay, (1 + step) / (10 + step)), so that an early average is not the random
    start.
    """
    return 1.0 - min(decay, (1 + step) / (10 + step))


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, share: float | Tensor) -> None:
    """Move `average` towards `network` by `share`, 0..1 (or () on its device). Buffers, as of norms, are copied."""
    targets: list[Tensor] = list(average.parameters())
    sources: list[Tensor] = list(network.parameters())
    if isinstance(share, Tensor):
        steps = list(torch._foreach_sub(sources, targets))
        torch._foreach_mul_(steps, share)
        torch._foreach_add_(targets, steps)
    else:
        torch._foreach_lerp_(targets, sources, share)
    for target, source in zip(average.buffers(), network.buffers(), strict=True):
        target.copy_(source)
