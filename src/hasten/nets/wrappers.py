"""The network inside its wrappers."""

from __future__ import annotations

from torch import nn

_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def unwrapped(network: nn.Module) -> nn.Module:
    """The module inside the wrappers of `torch.compile` and data parallelism, whichever is outside."""
    while True:
        inside = network.module if isinstance(network, _PARALLEL) else getattr(network, "_orig_mod", network)
        if inside is network:
            return network
        network = inside
