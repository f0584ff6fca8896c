"""Exponential moving average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import nn


def average_of(network: nn.Module) -> nn.Module:
    """A copy of `network` that `update_average` moves towards it."""
    average = copy.deepcopy(network)
    average.requires_grad_(False)
    return average.eval()


@torch.no_grad()
def update_average(average: nn.Module, network: nn.Module, *, step: int, decay: float) -> None:
    """Move `average` towards `network` after 0-based `step`.

    The memory grows with the run, min(decay, (1 + step) / (10 + step)), so that an early average is not the random
    start. Buffers (batch-norm statistics) are copied.
    """
    share = 1.0 - min(decay, (1 + step) / (10 + step))
    torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), share)
    for target, source in zip(average.buffers(), network.buffers(), strict=True):
        target.copy_(source)
