"""Weights, gradients and moments in shards: each process keeps its rows of every parameter (torch's FSDP2).

A block's weights are gathered from all before its forward and its backward pass, and dropped again after them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from hasten.config.schema import DistributeConfig, RunConfig
from hasten.distribute.ddp import placed_whole
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World
from hasten.nets.recompute import Recomputed

_BY_ELEMENT = ("adamw", "sgd")
_REDUCED = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class Fsdp(Strategy):
    """Each process has a share of the batch and a shard of the state.

    The whole network is in each process's memory until `place` has sharded it, and while a module that `whole` gave is
    kept. Weights are laid out contiguously, as FSDP2 takes no others: a channels-last image then goes through
    convolutions that convert their filters at each call.
    """

    name = "fsdp"
    splits_batch = True
    whole_network = False
    """What `place` returns can only be called by all ranks together."""

    def __init__(self, world: World, config: DistributeConfig) -> None:
        super().__init__(world, config)
        self._skeleton: nn.Module | None = None
        self._weights: dict[str, DTensor] = {}
        """Sharded weights by every name that the network has for them."""
        self._order: list[DTensor] = []
        """Sharded weights as the optimizer's states number them."""

    def mistakes(self, config: RunConfig) -> list[str]:
        messages, train = [], config.train
        if train.optimizer not in _BY_ELEMENT:
            messages.append(
                f"train.optimizer: {train.optimizer} looks at whole layers, of which a process has only some rows "
                "under distribute.strategy=fsdp; use adamw or sgd, or distribute.strategy=ddp, which runs every one"
            )
        if train.precision == "fp16":
            messages.append("train.precision: fsdp has no loss scaling for fp16; use bf16 or fp32, or ddp")
        if train.compile:
            messages.append(
                "train.compile: fsdp gathers weights between the operations of a network; set it to false, or use ddp"
            )
        return messages

    def place(self, network: nn.Module, average: nn.Module | None) -> tuple[nn.Module, nn.Module | None]:
        network, average = placed_whole(network, average, self.config)
        self._skeleton = skeleton_of(network)
        for module in (network, average):
            if module is not None:
                self._shard(module)
        named = network.named_parameters(remove_duplicate=False)
        self._weights = {name: weight for name, weight in named if isinstance(weight, DTensor)}
        return network, average

    def _shard(self, module: nn.Module) -> None:
        for weight in module.parameters():
            weight.data = weight.data.contiguous()
        device = next(module.parameters()).device
        mesh = init_device_mesh(device.type, (self.world.size,))
        policy = MixedPrecisionPolicy(reduce_dtype=_REDUCED[self.config.gradients])
        for block in sharded_blocks(module):
            block.register_forward_hook(_no_views)
            fully_shard(block, mesh=mesh, mp_policy=policy)

    def share_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """`optimizer` on this process's rows as plain tensors: most of torch's fused kernels take no others."""
        self._order = [weight for group in optimizer.param_groups for weight in group["params"]]
        rows = {
            weight: nn.Parameter(_local(weight.detach()), requires_grad=weight.requires_grad) for weight in self._order
        }
        for group in optimizer.param_groups:
            group["params"] = [rows[weight] for weight in group["params"]]

        def take_gradients(*_: Any) -> None:
            for weight, row in rows.items():
                row.grad = None if weight.grad is None else _local(weight.grad)

        def zero_grad(set_to_none: bool = True) -> None:
            for tensor in (*rows, *rows.values()):
                tensor.grad = None

        optimizer.register_step_pre_hook(take_gradients)
        optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
        return optimizer

    @contextmanager
    def sync(self, network: nn.Module, *, last: bool) -> Iterator[None]:
        """Gradients of all pieces but the last are added up whole, in memory for all parameters."""
        assert isinstance(network, FSDPModule)
        network.set_requires_gradient_sync(last)
        try:
            yield
        finally:
            network.set_requires_gradient_sync(True)

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        local_norm = nn.utils.get_total_norm([_local(gradient) for gradient in gradients])
        norms = [torch.empty_like(local_norm) for _ in range(self.world.size)]
        distributed.all_gather(norms, local_norm)
        return torch.linalg.vector_norm(torch.stack(norms))

    def whole(self, module: nn.Module) -> nn.Module:
        """Another module at each call, whose weights take memory until it is dropped."""
        assert self._skeleton is not None
        return fill(self._skeleton, module)

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The whole state on rank 0, in host memory. Tensors are gathered one by one."""
        return _converted(
            state, self._gathered_weights, lambda value, number: self._full_value(self._sharded(value, number))
        )

    def scatter_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return _converted(state, self._scattered_weights, self._rows)

    def _gathered_weights(self, weights: dict[str, Any]) -> dict[str, Any]:
        # A tied weight is gathered once and stays one tensor.
        by_tensor: dict[int, Any] = {}
        gathered = {}
        for name, value in weights.items():
            key = id(self._weights.get(name, value))
            if key not in by_tensor:
                by_tensor[key] = self._full_value(value)
            gathered[name] = by_tensor[key]
        return gathered

    def _scattered_weights(self, weights: dict[str, Any]) -> dict[str, Any]:
        scattered = {}
        for name, value in weights.items():
            like = self._weights.get(name)
            # Weights of another network stay as they are; `restore_state` reports how they differ.
            fits = like is not None and like.shape == value.shape
            scattered[name] = with_shard(shard_of(value, like), like) if fits and like is not None else value
        return scattered

    def _sharded(self, value: Any, number: int) -> Any:
        """A moment as the rows of a whole one; what isn't by element is the same on all ranks."""
        weight = self._order[number]
        by_element = isinstance(value, Tensor) and value.ndim > 0 and value.shape == _local(weight).shape
        return with_shard(value, weight) if by_element else value

    def _rows(self, value: Any, number: int) -> Any:
        weight = self._order[number] if number < len(self._order) else None
        by_element = weight is not None and isinstance(value, Tensor) and value.shape == weight.shape
        return shard_of(value, weight) if by_element and weight is not None else value

    def _full_value(self, value: Any) -> Any:
        """A sharded tensor gathered, in host memory on rank 0; any other value as it is."""
        if not isinstance(value, DTensor):
            return value
        whole = value.full_tensor()
        return whole.cpu() if self.world.first else value


def _converted(
    state: dict[str, Any], weights: Callable[[dict[str, Any]], dict[str, Any]], moment: Callable[[Any, int], Any]
) -> dict[str, Any]:
    """A training state with other weights and moments. moment: takes a value and its parameter's number."""
    optimizer = state["optimizer"]
    moments = {
        number: {name: moment(value, number) for name, value in values.items()}
        for number, values in optimizer["state"].items()
    }
    return {
        **state,
        "network": weights(state["network"]),
        "average": None if state["average"] is None else weights(state["average"]),
        "optimizer": {**optimizer, "state": moments},
    }


def _no_views(module: nn.Module, arguments: Any, output: Any) -> Any:
    """A block's output without views.

    A hook on the output gathers the weights for the backward pass; an in-place operation on a view (as norms return)
    would silently drop that hook.
    """
    return tree_map_only(Tensor, lambda tensor: tensor.clone() if tensor._is_view() else tensor, output)


def _local(value: Any) -> Tensor:
    """The rows of this rank; they share the memory of the sharded tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


SHARE = 1 / 8
"""Share of all weights that a block needs to be gathered by itself; smaller blocks wait more than they save."""


def sharded_blocks(network: nn.Module, share: float = SHARE) -> list[nn.Module]:
    """Blocks with at least `share` of the weights outside of the blocks within them, inner ones first; at last the
    network.

    A block is a module with modules in it: the weight of a single layer may be read by the block that it is in. None
    is taken from within a module that is recomputed, which would gather it twice in a backward pass. Where a parameter
    has two modules, the network is one block. None holds weights that a module before it left over: nnU-Net's decoder
    has the encoder as a part, whose weights are read first.
    """
    weights = [id(weight) for module in network.modules() for weight in module.parameters(recurse=False)]
    if len(set(weights)) < len(weights):  # tied ones
        return [network]
    min_bytes = share * sum(weight.nbytes for weight in network.parameters())
    blocks: list[nn.Module] = []
    visited: set[nn.Module] = set()
    unassigned: set[nn.Module] = set()  # visited, and in no block yet

    def direct_bytes(module: nn.Module) -> int:
        """Bytes of the module's direct weights, counted once: a module may have several names."""
        if module in visited:
            return 0
        visited.add(module)
        unassigned.add(module)
        return sum(weight.nbytes for weight in module.parameters(recurse=False))

    def visit(module: nn.Module) -> int:
        """Bytes of the module's weights that no block has."""
        outside = set(unassigned)
        if isinstance(module, Recomputed):
            remaining = sum(map(direct_bytes, module.modules()))
        else:
            remaining = direct_bytes(module) + sum(map(visit, module.children()))
        left_over = any(any(True for _ in part.parameters(recurse=False)) for part in outside & {*module.modules()})
        # Without a `forward` of its own, no hook would gather its weights.
        is_block = any(True for _ in module.children()) and type(module).forward is not nn.Module.forward
        if module is network or remaining < min_bytes or not is_block or left_over:
            return remaining
        blocks.append(module)
        unassigned.difference_update(module.modules())
        return 0

    visit(network)
    return [*blocks, network]


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
    """The sharded tensor, in the shape of `like`, whose rows on this rank are `local`, (n, ...). No communication."""
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def skeleton_of(network: nn.Module) -> nn.Module:
    """A copy of `network` without memory: its parameters and buffers are on the meta device, strides kept."""
    hollow: dict[int, Tensor] = {}
    for weight in network.parameters():
        hollow[id(weight)] = nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=False)
    for buffer in network.buffers():
        hollow[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(network, hollow)


@torch.no_grad()
def fill(skeleton: nn.Module, module: nn.Module) -> nn.Module:
    """A plain module with the weights of the sharded `module` in the memory format of the skeleton.

    Its buffers are those of `module`. Every rank calls it.
    """
    whole: dict[int, Tensor] = {}
    for hollow, weight in zip(skeleton.parameters(), module.parameters(), strict=True):
        # Where a side is 1, `empty_like` of a hollow tensor forgets the strides.
        full = torch.empty_strided(hollow.shape, hollow.stride(), dtype=weight.dtype, device=weight.device)
        assert isinstance(weight, DTensor)
        whole[id(hollow)] = nn.Parameter(full.copy_(weight.full_tensor()), requires_grad=False)
    for empty, buffer in zip(skeleton.buffers(), module.buffers(), strict=True):
        whole[id(empty)] = buffer
    return copy.deepcopy(skeleton, whole).train(module.training)
