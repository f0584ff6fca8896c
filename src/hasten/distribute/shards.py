"""Conversion of tensors between whole and sharded along the first axis, as in FSDP."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@torch.no_grad()
def shard_of(whole: Tensor, like: DTensor) -> Tensor:
    """A copy of this rank's rows of `whole` (of the shape of `like`), on the device of `like`.

    Every rank has the same number of rows, rounded up; the last ranks have the rest, perhaps none.
    """
    pieces, rank = whole.chunk(like.device_mesh.size()), like.device_mesh.get_local_rank()
    rows = pieces[rank] if rank < len(pieces) else whole[:0]
    # Contiguous and not `empty_like`: torch's fused kernels read it as flat memory next to a contiguous parameter.
    return torch.empty(rows.shape, dtype=whole.dtype, device=like.device).copy_(rows)


def with_shard(local: Tensor, like: DTensor) -> DTensor:
    """The sharded tensor of which this rank has the rows `local`. No communication."""
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def whole_of(value: Tensor) -> Tensor:
    """All rows; every rank calls it. A tensor that isn't sharded is returned as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def skeleton_of(network: nn.Module) -> nn.Module:
    """A copy of `network` without memory: its parameters and buffers are on the meta device, strides kept."""
    hollow: dict[int, Tensor] = {}
    for weight in network.parameters():
        hollow[id(weight)] = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)
    for buffer in network.buffers():
        hollow[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(network, hollow)


@torch.no_grad()
def filled(skeleton: nn.Module, module: nn.Module) -> nn.Module:
    """A plain module with the weights of the sharded `module` in the memory format of the skeleton.

    Its buffers are those of `module`. Every rank calls it.
    """
    whole: dict[int, Tensor] = {}
    for hollow, weight in zip(skeleton.parameters(), module.parameters(), strict=True):
        # Where a side is 1, `empty_like` of a hollow tensor forgets the strides.
        full = torch.empty_strided(hollow.shape, hollow.stride(), dtype=weight.dtype, device=weight.device)
        whole[id(hollow)] = nn.Parameter(full.copy_(whole_of(weight)), requires_grad=False)
    for empty, buffer in zip(skeleton.buffers(), module.buffers(), strict=True):
        whole[id(empty)] = buffer
    return copy.deepcopy(skeleton, whole).train(module.training)
