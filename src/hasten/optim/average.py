"""Exponential moving average of the weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass

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


@dataclass(frozen=True)
class NetworkTensors:
    """The parameters and buffers of a network, looked up once: to walk its modules at every step takes a millisecond.

    They are of any shape. A parameter stays the same object while it is trained, as every optimizer assumes. A module
    may replace a buffer, so buffers are kept by the module's dictionary and their name.
    """

    parameters: list[Tensor]
    buffer_names: list[tuple[dict[str, Tensor | None], str]]

    @classmethod
    def of(cls, network: nn.Module) -> NetworkTensors:
        names = [(module._buffers, name) for module in network.modules() for name in module._buffers]
        return cls(list(network.parameters()), names)

    def buffers(self) -> list[Tensor]:
        """The present buffers, of any shape."""
        tensors = (buffers[name] for buffers, name in self.buffer_names)
        return [tensor for tensor in tensors if tensor is not None]


@torch.no_grad()
def update_average(average: NetworkTensors, network: NetworkTensors, share: float | Tensor) -> None:
    """Move `average` towards `network` by `share`, 0..1 (or () on its device). Buffers, as of norms, are copied."""
    if isinstance(share, Tensor):
        steps = list(torch._foreach_sub(network.parameters, average.parameters))
        torch._foreach_mul_(steps, share)
        torch._foreach_add_(average.parameters, steps)
    else:
        torch._foreach_lerp_(average.parameters, network.parameters, share)
    for target, source in zip(average.buffers(), network.buffers(), strict=True):
        target.copy_(source)
