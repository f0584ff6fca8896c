"""ZeRO-1: DDP with a sharded optimizer state; each process keeps and updates the moments of its own parameters only.

ZeRO stage 1 (S. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020,
arXiv:1910.02054). torch's ZeroRedundancyOptimizer is not used, as it rebuilds the inner optimizer from parameter
groups alone (Muon needs the role of each parameter), hides the protocol for skipped
steps from the loop, and saves states by pickled messages of whole ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.utils._pytree import tree_map_only

from hasten.distribute.balance import partition
from hasten.distribute.ddp import Ddp, broadcast_tensors
from hasten.distribute.part_optimizer import PartOptimizer
from hasten.distribute.world import World
from hasten.optim.base import Amp
from hasten.optim.lamb import Lamb


class Zero1(Ddp):
    """Gradients as in DDP; after each step the owners broadcast their parameters."""

    name = "zero1"

    def share_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        bucket_bytes = max(1, int(self.config.bucket_mb * 2**20))
        return Zero1Optimizer(optimizer, self.world, bucket_bytes=bucket_bytes)

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "optimizer": _gather(state["optimizer"], self.world)}


class Zero1Optimizer(PartOptimizer):
    """Updates this rank's parameters, and receives the others from the ranks that own them."""

    def __init__(self, inner: torch.optim.Optimizer, world: World, *, bucket_bytes: int) -> None:
        parameters: list[Tensor] = [parameter for group in inner.param_groups for parameter in group["params"]]
        dealt = partition([parameter.numel() * parameter.requires_grad for parameter in parameters], world.size)
        groups = [dict(group) for group in inner.param_groups]
        super().__init__(inner, {number: parameters[number] for number in dealt[world.rank]})
        _measure_whole(inner, groups)
        self._bucket_bytes = bucket_bytes
        self._owned: list[list[Tensor]] = [
            [parameters[number].detach() for number in numbers if parameters[number].requires_grad] for numbers in dealt
        ]

    def after(self) -> None:
        """Broadcast every owner's parameters to all ranks, many in a message."""
        for owner, parameters in enumerate(self._owned):
            broadcast_tensors(parameters, source=owner, message_bytes=self._bucket_bytes)


def _measure_whole(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """LAMB's common norm is that of all gradients, of which the cut groups hold only some."""
    if not isinstance(optimizer, Lamb):
        return
    plain = optimizer._divisor

    def divisor(gradients: list[list[Tensor]], amp: Amp) -> Tensor | None:
        return plain([moved for group in groups for _, moved in optimizer._moving(group)], amp)

    optimizer._divisor = divisor  # type: ignore[method-assign]


def _gather(state: dict[str, Any], world: World) -> dict[str, Any]:
    """The state of all parameters on rank 0, in host memory except for rank 0's own; `state` on other ranks."""
    if not world.first:
        # One by one, so that no rank has to hold all of its values twice.
        for entry in state["state"].items():
            distributed.send_object_list([tree_map_only(Tensor, Tensor.cpu, entry)], dst=0)
        distributed.send_object_list([None], dst=0)
        return state
    values = dict(state["state"])
    for owner in range(1, world.size):
        message: list[Any] = [None]
        distributed.recv_object_list(message, src=owner)
        while message[0] is not None:
            number, values[number] = message[0]
            distributed.recv_object_list(message, src=owner)
    return {**state, "state": dict(sorted(values.items()))}
