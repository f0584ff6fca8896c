"""ZeRO-1: DDP with a sharded optimizer state; each process keeps and updates the moments of its own parameters only.

ZeRO stage 1 (S. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020,
arXiv:1910.02054). torch's ZeroRedundancyOptimizer is not used, as it rebuilds the inner optimizer from parameter
groups alone (Muon needs the role of each parameter, Lookahead wraps an optimizer), hides the protocol for skipped
steps from the loop, and saves states by pickled messages of whole ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from hasten.distribute.balance import partition
from hasten.distribute.ddp import Ddp
from hasten.distribute.part_optimizer import PartOptimizer, put_together, taken_apart
from hasten.optim.base import Amp
from hasten.optim.lamb import Lamb
from hasten.optim.layout import innermost


class Zero1(Ddp):
    """Gradients as in DDP; after each step the owners send their parameters to all."""

    name = "zero1"

    def share_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        bucket_bytes = max(1, int(self.config.bucket_mb * 2**20))
        return DealtOptimizer(optimizer, rank=self.world.rank, world_size=self.world.size, bucket_bytes=bucket_bytes)

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "optimizer": _gathered(state["optimizer"], self.world.rank)}


class DealtOptimizer(PartOptimizer):
    """Updates this rank's parameters, and receives the others from the ranks that own them."""

    def __init__(
        self, inner: torch.optim.Optimizer, *, rank: int, world_size: int, bucket_bytes: int = 25 * 2**20
    ) -> None:
        parameters: list[Tensor] = [parameter for group in inner.param_groups for parameter in group["params"]]
        dealt = partition([parameter.numel() * parameter.requires_grad for parameter in parameters], world_size)
        groups = [dict(group) for group in inner.param_groups]
        super().__init__(inner, {number: parameters[number] for number in dealt[rank]})
        _measure_whole(inner, groups)
        self._bucket_bytes = bucket_bytes
        self._owned: list[list[Tensor]] = [
            [parameters[number].detach() for number in numbers if parameters[number].requires_grad] for numbers in dealt
        ]

    def after(self) -> None:
        """Broadcast every owner's parameters to all ranks, many in a message."""
        across = distributed.group.WORLD
        assert across is not None
        for owner, parameters in enumerate(self._owned):
            if parameters:
                distributed._broadcast_coalesced(across, parameters, self._bucket_bytes, owner)


def _measure_whole(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """LAMB's common norm is that of all gradients, of which the cut groups hold only some."""
    inner = innermost(optimizer)
    if not isinstance(inner, Lamb):
        return
    plain = inner._divisor

    def divisor(gradients: list[list[Tensor]], amp: Amp) -> Tensor | None:
        return plain([moved for group in groups for _, moved in inner._moving(group)], amp)

    inner._divisor = divisor  # type: ignore[method-assign]


def _gathered(state: dict[str, Any], rank: int) -> dict[str, Any]:
    """The state of all parameters on rank 0, in host memory except for rank 0's own; `state` on other ranks."""
    local_state = taken_apart(state)
    described = {
        place: _TensorSpec(value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else value
        for place, value in local_state.items()
    }
    descriptions: list[Any] = [None] * distributed.get_world_size()
    distributed.gather_object(described, descriptions if rank == 0 else None, dst=0)
    device = _device()
    if rank != 0:
        for value in local_state.values():
            if isinstance(value, Tensor):
                distributed.send(value.detach().contiguous().to(device), dst=0)
        return state
    merged = dict(local_state)
    for owner, values in enumerate(descriptions[1:], start=1):
        for place, value in values.items():
            merged[place] = _receive(value, owner, device) if isinstance(value, _TensorSpec) else value
    return put_together(state, merged)


class _TensorSpec(NamedTuple):
    """Shape, stride and type of a tensor that is sent next."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def _receive(description: _TensorSpec, source: int, device: torch.device) -> Tensor:
    buffer = torch.empty(description.shape, dtype=description.dtype, device=device)
    distributed.recv(buffer, src=source)
    return torch.empty_strided(description.shape, description.stride, dtype=description.dtype).copy_(buffer)


def _device() -> torch.device:
    """The device from which the backend sends tensors."""
    if distributed.get_backend() == "nccl":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
