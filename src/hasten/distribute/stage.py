"""One process's pipeline stage: the layers that it keeps, and their part of the forward pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from hasten.distribute.cut import Operations, flowing, state_used


@dataclass(frozen=True, slots=True)
class Stages:
    """A network cut into stages. Tensors are identified by their names in the whole network."""

    operations: Operations
    places: tuple[int, ...]
    """Where the stages begin, except the first."""
    owners: dict[str, int]
    """Of each parameter and buffer: its stage. What no operation uses is the first stage's."""
    skeleton: nn.Module
    """A copy of the whole network on the host, whose values are those of the start."""

    @property
    def count(self) -> int:
        return len(self.places) + 1

    def bounds(self, stage: int) -> tuple[int, int]:
        ends = (0, *self.places, len(self.operations.nodes))
        return ends[stage], ends[stage + 1]


def stages_of(network: nn.Module, operations: Operations, places: Sequence[int]) -> Stages:
    """The network cut at `places`; nothing is changed in it."""
    by_tensor: dict[int, int] = {}
    ends = (*places, len(operations.nodes))
    for position, node in enumerate(operations.nodes):
        stage = sum(position >= end for end in ends)
        for _, value in state_used(network, node):
            by_tensor.setdefault(id(value), stage)
    owners = {name: by_tensor.get(id(value), 0) for name, value in named_state(network)}
    return Stages(operations, tuple(places), owners, copy.deepcopy(network).cpu())


def named_state(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, including those that are not in the state_dict, under all of their names."""
    parameters = module.named_parameters(remove_duplicate=False)
    return [*parameters, *module.named_buffers(remove_duplicate=False)]


def keep_stage(module: nn.Module, stages: Stages, stage: int) -> None:
    """Keep only a stage's parameters and buffers in a network, in place; the memory of the others is freed."""
    for name, _ in named_state(module):
        if stages.owners[name] != stage:
            owner, _, leaf = name.rpartition(".")
            holder = module.get_submodule(owner)
            # None, and not deleted: the attribute stays, and no list of parameters has it.
            (holder._parameters if leaf in holder._parameters else holder._buffers)[leaf] = None


class Stage(nn.Module):
    """What a process computes of the forward pass.

    Called with what the stage before sends (the first: with the image), it returns what the next one takes (the last:
    what the network returns).
    """

    def __init__(self, network: nn.Module, stages: Stages, stage: int) -> None:
        super().__init__()
        self.network = network
        operations = stages.operations
        begin, end = stages.bounds(stage)
        self.nodes = operations.nodes[begin:end]
        self.takes = flowing(operations, begin) if stage else [operations.nodes[0]]
        self.last = stage == stages.count - 1
        self.gives: Any = operations.output if self.last else tuple(flowing(operations, end))
        self.operations = operations
        self.precision: Callable[[], AbstractContextManager] = nullcontext
        """Around the layers: the step's autocast."""
        self._dead = self._last_uses()

    def forward(self, *inputs: Tensor) -> Any:
        values: dict[fx.Node, Any] = dict(zip(self.takes, inputs, strict=True))
        with self.precision():
            for node in self.operations.run(self.network, values, self.nodes):
                for dead in self._dead.get(node, ()):
                    del values[dead]
            # Contiguous for sender and receiver alike; this also computes a norm that was deferred.
            return map_arg(self.gives, lambda node: values[node] if self.last else values[node].contiguous())

    def _last_uses(self) -> dict[fx.Node, list[fx.Node]]:
        returned: set[fx.Node] = set()
        map_arg(self.gives, lambda node: returned.add(node))
        last: dict[fx.Node, fx.Node] = {}
        for node in self.nodes:
            for other in node.all_input_nodes:
                if other.op != "get_attr":
                    last[other] = node
        dead: dict[fx.Node, list[fx.Node]] = {}
        for other, node in last.items():
            if other not in returned:
                dead.setdefault(node, []).append(other)
        return dead


Form = tuple[tuple[int, ...], torch.dtype, bool]
"""Shape, type and requires_grad of a tensor that is sent."""


def forms_given(stage: Stage, input_forms: Sequence[Form], device: torch.device) -> list[Form]:
    """The forms of a stage's outputs for inputs of these forms, by a forward pass of a copy."""
    clone = copy.copy(stage)
    clone._modules = {"network": copy.deepcopy(stage.network)}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.enable_grad():
        inputs = [
            torch.zeros(shape, dtype=dtype, device=device, requires_grad=grad) for shape, dtype, grad in input_forms
        ]
        outputs = clone(*inputs)
    tensors = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    return [(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors]
