"""Cutting a network's forward pass into pipeline stages: its operations, their costs, and where to cut.

The operations are the nodes that torch.fx traces: calls of layers and of functions between them. A module that fx can't
trace, because its control flow depends on values, stays whole. Tensors that cross a cut (the skip connections of a
U-Net, say) are passed on from stage to stage.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from hasten.files import first_line
from hasten.nets import nnunet, unet
from hasten.nets.random_state import random_state_kept
from hasten.nets.surgery.deferred import Deferred
from hasten.nets.surgery.reclass import ClassSwap

_SIDES = (32, 48, 64, 96, 128, 160, 192, 256)
"""Image sizes that are tried to count costs; if one is not a multiple of the network's strides, a later one is."""
_FLOPS_PER_NUMBER = 200
"""Time cost of writing or sending one number, in FLOPs: about its cost on CPUs, and enough that the memory of
activations is balanced too."""
_LOSS = 5
"""Passes of the loss over the network's output, a cost of the last stage."""
_NETWORKS = (nnunet.__name__, unet.__name__)
"""Hasten's modules that are traced into; its other ones, such as fused layers, are single operations."""


@dataclass(frozen=True, slots=True)
class Operations:
    """A forward pass as a list of operations."""

    nodes: tuple[fx.Node, ...]
    """Nodes in their order, the image first; without constants (parameters used by functions) and the output."""
    output: Any
    """What the network returns: a node, or nodes in a tuple."""

    def part(self, begin: int, end: int) -> fx.Graph:
        """The operations from `begin` to `end`, as a graph that takes what flows in, and returns what flows out."""
        graph = fx.Graph()
        takes = flowing(self, begin) if begin else self.nodes[:1]
        gives = self.output if end == len(self.nodes) else tuple(flowing(self, end))
        copies = {node: graph.placeholder(node.name) for node in takes}

        def copied(node: fx.Node) -> fx.Node:
            if node not in copies:
                copies[node] = graph.node_copy(node, copied)  # and the constants that it uses
            return copies[node]

        for node in self.nodes[begin:end]:
            copied(node)
        graph.output(map_arg(gives, copied))
        return graph


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of each operation and of each place to cut. Place k is before operation k; place 0 can't be cut at."""

    costs: tuple[float, ...]
    crossing: tuple[int, ...]
    """Numbers that flow over a place."""
    allowed: tuple[bool, ...]
    trained: tuple[int, ...]
    """Trained parameters that an operation is the first to use."""


def operations_of(network: nn.Module) -> Operations:
    """Trace a network in training mode. Raises ValueError if it can't be traced."""
    whole: set[str] = set()
    while True:
        clone = copy.deepcopy(network).train()
        tracer = _Tracer(whole)
        try:
            graph = tracer.trace(clone)
        except Exception as error:  # whatever a forward pass does with stand-ins for tensors
            if not tracer.open or tracer.open[-1] in whole:
                raise ValueError(
                    f"distribute.strategy=pipeline: {type(network).__name__} can't be cut into stages, as its own "
                    f"forward depends on values ({first_line(error)}); use fsdp or ddp"
                ) from error
            whole.add(tracer.open[-1])
            continue
        output = next(node for node in graph.nodes if node.op == "output")
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        if any(node.users for node in inputs[1:]):
            raise ValueError(
                f"distribute.strategy=pipeline: {type(network).__name__} takes {len(inputs)} inputs; a network of one "
                "image can be cut into stages: use fsdp or ddp"
            )
        nodes = (node for node in graph.nodes if node.op not in ("output", "get_attr") and node not in inputs[1:])
        outputs = output.args[0]
        # A list of outputs (deep supervision) is one to torch's pipeline schedules only as a tuple.
        return Operations(tuple(nodes), tuple(outputs) if isinstance(outputs, list) else outputs)


class _Tracer(fx.Tracer):
    def __init__(self, whole: set[str]) -> None:
        super().__init__()
        self.whole = whole
        self.open: list[str] = []
        """Modules that are being traced; after an error, the last is the one that raised it."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        module_name = type(m).__module__
        is_ours = isinstance(m, ClassSwap) or (module_name.startswith("hasten.") and module_name not in _NETWORKS)
        return is_ours or module_qualified_name in self.whole or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        self.open.append(self.path_of_module(m))
        output = super().call_module(m, forward, args, kwargs)
        self.open.pop()
        return output


def state_used(network: nn.Module, node: fx.Node) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, of any shape, that an operation uses, by their names in the network."""
    tensors: list[tuple[str, Tensor]] = []
    if node.op == "call_module":
        name = str(node.target)
        module = network.get_submodule(name)
        tensors += [(f"{name}.{key}", value) for key, value in module.named_parameters()]
        tensors += [(f"{name}.{key}", value) for key, value in module.named_buffers()]
    for other in node.all_input_nodes:
        if other.op == "get_attr":
            tensors.append((str(other.target), attrgetter(str(other.target))(network)))
    return tensors


@torch.no_grad()
def count_costs(network: nn.Module, operations: Operations) -> Costs:
    """Send one small image through a copy of the network, and count. Raises ValueError if none goes through."""
    last_error: Exception | None = None
    for side in _SIDES:
        clone = copy.deepcopy(network).train()
        with random_state_kept(next(clone.parameters()).device):
            try:
                return _count(clone, operations, _image(clone, side))
            except Exception as error:  # too small for its strides or for a norm
                last_error = error
    assert last_error is not None
    raise ValueError(
        f"distribute.strategy=pipeline: {type(network).__name__} takes no image of side {_SIDES[0]} to {_SIDES[-1]} "
        f"({first_line(last_error)}), so that its layers' costs are not known; use fsdp or ddp"
    )


def _image(network: nn.Module, side: int) -> Tensor:
    for module in network.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            weight = module.weight
            shape = (1, module.in_channels, *(side,) * (weight.ndim - 2))
            return torch.randn(shape, dtype=weight.dtype, device=weight.device)
    raise ValueError("it has no convolution, by which the shape of its image is known")


def _count(network: nn.Module, operations: Operations, image: Tensor) -> Costs:
    nodes = operations.nodes
    interpreter = fx.Interpreter(network, garbage_collect_values=False, graph=nodes[0].graph)
    values = interpreter.env
    values |= {node: interpreter.run_node(node) for node in nodes[0].graph.nodes if node.op == "get_attr"}
    costs: list[float] = []
    numbers: list[int] = []
    changed: list[set[fx.Node]] = []
    for node in nodes:
        # Versions show which inputs a layer changes in place; it may not do so to a tensor that another stage sent.
        before = {other: _version(values.get(other)) for other in node.all_input_nodes}
        with FlopCounterMode(display=False) as counter:
            values[node] = interpreter.run_node(node) if node.op != "placeholder" else image
        written = sum(leaf.numel() for leaf in tree_leaves(values[node]) if isinstance(leaf, Tensor))
        aliased = any(_same_memory(values[node], values.get(other)) for other in node.all_input_nodes)
        numbers.append(0 if aliased or node.op == "placeholder" else written)
        costs.append(float(counter.get_total_flops() + _FLOPS_PER_NUMBER * numbers[-1]))
        inplace = node.op == "call_module" and getattr(network.get_submodule(str(node.target)), "inplace", False)
        changed.append({other for other, old in before.items() if inplace or _version(values.get(other)) != old})
    output = max((numbers[nodes.index(node)] for node in nodes_in(operations.output)), default=0)
    costs[-1] += _LOSS * _FLOPS_PER_NUMBER * output
    crossing, allowed = _places(network, operations, values, changed)
    counted: set[int] = set()
    trained = []
    for node in nodes:
        new = {id(value) for _, value in state_used(network, node) if value.requires_grad} - counted
        counted |= new
        trained.append(len(new))
    return Costs(tuple(costs), crossing, allowed, tuple(trained))


def flowing(operations: Operations, place: int) -> list[fx.Node]:
    """Nodes that are computed before a place and used after it, in order."""
    before, behind = operations.nodes[:place], set(operations.nodes[place:])
    returned = set(nodes_in(operations.output))
    return [node for node in before if node in returned or any(user in behind for user in node.users)]


def nodes_in(value: Any) -> list[fx.Node]:
    """The nodes in nested values, such as the arguments of an operation."""
    nodes: list[fx.Node] = []
    map_arg(value, lambda node: nodes.append(node))
    return nodes


def _places(
    network: nn.Module, operations: Operations, values: dict[fx.Node, Any], changed: list[set[fx.Node]]
) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    nodes = operations.nodes
    spans = _spans(network, nodes)
    crossing, allowed = [0], [False]
    for place in range(1, len(nodes)):
        flow = flowing(operations, place)
        tensors = [values[node] for node in flow]
        later = {node for change in changed[place:] for node in change}
        # A tensor that shares its memory with one that is changed later is changed too.
        touched = any(
            node in later or any(_same_memory(values[node], values[other]) for other in later) for node in flow
        )
        split = any(first < place <= last for first, last in spans)
        allowed.append(all(isinstance(tensor, Tensor) for tensor in tensors) and not touched and not split)
        crossing.append(sum(tensor.numel() for tensor in tensors if isinstance(tensor, Tensor)))
    return tuple(crossing), tuple(allowed)


def _spans(network: nn.Module, nodes: Sequence[fx.Node]) -> list[tuple[int, int]]:
    """First and last use of each parameter or buffer: a layer that is called twice lies in one stage."""
    spans: dict[int, tuple[int, int]] = {}
    for position, node in enumerate(nodes):
        for _, value in state_used(network, node):
            first, _ = spans.get(id(value), (position, position))
            spans[id(value)] = (first, position)
    return list(spans.values())


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) and not isinstance(value, Deferred) else 0


def _same_memory(one: Any, other: Any) -> bool:
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    if isinstance(one, Deferred) or isinstance(other, Deferred):
        return one is other
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def cut_places(costs: Costs, stages: int) -> list[int]:
    """`stages` - 1 places, ascending, such that the costliest stage is as cheap as possible.

    A stage costs its operations and the numbers that it is sent, and has trained parameters. Raises ValueError if the
    network does not have that many stages.
    """
    ends = [place for place, allowed in enumerate(costs.allowed) if allowed] + [len(costs.costs)]
    upto = [0.0, *accumulate(costs.costs)]
    trained = [0, *accumulate(costs.trained)]
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    """Cost of the costliest stage so far and the places between stages, by the place where they end."""
    for stage in range(stages):
        reached: dict[int, tuple[float, list[int]]] = {}
        for end in ends if stage < stages - 1 else ends[-1:]:
            options = []
            for begin, (highest, places) in best.items():
                if begin < end and trained[begin] < trained[end]:
                    cost = upto[end] - upto[begin] + _FLOPS_PER_NUMBER * costs.crossing[begin]
                    options.append((max(highest, cost), [*places, begin] if begin else places))
            if options:
                reached[end] = min(options)
        if not reached:
            raise ValueError(
                f"distribute.strategy=pipeline: the network can be cut into {stage} stages at most, and there are "
                f"{stages} processes; start {max(1, stage)}, or use fsdp or ddp"
            )
        best = reached
    return best[ends[-1]][1]
