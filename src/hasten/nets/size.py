"""How large a network is: its weights, and the arithmetic of one forward pass."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def count_parameters(network: nn.Module) -> int:
    """Numbers in its weights, each weight counted once."""
    return sum(weight.numel() for weight in network.parameters())


def count_flops(network: nn.Module, shape: Sequence[int]) -> int | None:
    """Floating-point operations of the convolutions and matrix products of a forward pass on one (B, C, *S) image.

    Nothing is computed: shapes alone go through a copy of the network. None where it does not run without values.
    """
    try:
        twin = copy.deepcopy(network).to("meta").eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            twin(torch.empty(*shape, device="meta"))
    except Exception:  # whatever the user's own code raises
        return None
    return counter.get_total_flops()
