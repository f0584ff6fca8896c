"""Pipeline parallelism: every process has some of the layers, and micro-batches go through them one after another.

For networks whose activations don't fit into one device. Stages are cut where they cost about the same; torch's
schedules run them: 1F1B, in which a stage holds the activations of at most as many pieces as there are stages from it
to the end, or GPipe where there are fewer pieces than stages.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, distributed, fx, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils._pytree import tree_map_only

from hasten.config.schema import DistributeConfig, RunConfig
from hasten.distribute.consensus import broadcast_from_rank0
from hasten.distribute.ddp import broadcast_tensors, broadcast_weights
from hasten.distribute.pipeline_partition import (
    Operations,
    count_costs,
    cut_places,
    operations_of,
    state_used,
)
from hasten.distribute.strategy import Step, Strategy
from hasten.distribute.world import World
from hasten.nets.random_state import random_state_kept


class Pipeline(Strategy):
    """Stages by layers. Every rank gets the whole batch; the first takes the image and the last the label.

    A loss that sums over a batch, as batch Dice does, sees a piece at a time, and so does a batch norm: as with
    `train.accumulate`, of which each piece is cut again. Validation has the whole network on every rank.
    """

    name = "pipeline"
    same_loss = False
    whole_network = False

    _stages: Stages
    _network: nn.Module
    _average: nn.Module | None
    _layout: list[list[str]]
    """The parameters of each group of the optimizer of a single process."""

    def __init__(self, world: World, config: DistributeConfig) -> None:
        super().__init__(world, config)
        self._schedules: dict[tuple[Any, ...], ScheduleGPipe | Schedule1F1B] = {}
        self._step: tuple[Step, float] | None = None
        """The current step, and the weight of a piece's loss in it."""

    def mistakes(self, config: RunConfig) -> list[str]:
        train, sample, shared = config.train, config.sample, config.distribute
        messages = []
        if train.precision == "fp16":
            messages.append("train.precision: pipeline has no loss scaling, which fp16 needs; use bf16, tf32 or fp32")
        if train.activations != "all":
            messages.append("train.activations: pipeline recomputes nothing; use all, or more processes")
        messages += [
            f"train.{name}: pipeline has only some of the layers in a process; set it to false"
            for name in ("compile", "capture")
            if getattr(train, name)
        ]
        if sample.fit_batch:
            messages.append("sample.fit_batch: pipeline can't try batches out on a part of the layers; give batch_size")
        if shared.sync_norm:
            messages.append("distribute.sync_norm: pipeline has each norm in one process only; set it to false")
        if shared.gradients != "fp32":
            messages.append("distribute.gradients: pipeline sends no gradients of weights; set it to fp32")
        piece = (sample.batch_size or 0) // max(1, train.accumulate)
        if piece and piece % shared.micro_batches:
            messages.append(
                f"distribute.micro_batches: {shared.micro_batches} can't share {piece} patches (sample.batch_size over "
                f"train.accumulate) evenly; use {_pieces(piece, shared.micro_batches)}"
            )
        return messages

    def place(self, network: nn.Module, average: nn.Module | None) -> tuple[nn.Module, nn.Module | None]:
        """Place both whole; `share_optimizer` cuts them down to the stage, once the optimizer has all parameters."""
        broadcast_weights(network, average)
        operations = operations_of(network)
        # All ranks normally count the same costs; layers that choose their algorithm by machine may differ.
        places = broadcast_from_rank0(self.world, cut_places(count_costs(network, operations), self.world.size))
        self._stages = stages_of(network, operations, places)
        self._network, self._average = network, average
        return network, average

    def share_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        names = {id(weight): name for name, weight in self._network.named_parameters()}
        self._layout = [[names[id(weight)] for weight in group["params"]] for group in optimizer.param_groups]
        local_ids = {id(weight) for name, weight in self._network.named_parameters() if self._owns(name)}
        for group in optimizer.param_groups:
            group["params"][:] = [weight for weight in group["params"] if id(weight) in local_ids]
        for module in (self._network, self._average):
            if module is not None:
                keep_stage(module, self._stages, self.world.rank)
        return optimizer

    def wrap(self, network: nn.Module) -> nn.Module:
        assert network is self._network, "a compiled network can't be cut"
        return StageModule(network, self._stages, self.world.rank).train(network.training)

    def run_piece(self, step: Step, image: Tensor, label: Tensor, share: float) -> Tensor:
        image = step.to_layout(image)
        stage = step.network
        assert isinstance(stage, StageModule)
        stage.precision = step.autocast
        pieces = _pieces(len(image), self.config.micro_batches)
        schedule = self._schedule(stage, image[: len(image) // pieces], pieces)
        losses: list[Tensor] = []
        self._step = step, share / pieces
        inputs = (image,) if self.world.first else ()
        if stage.last:
            schedule.step(*inputs, target=label, losses=losses, return_outputs=False)
        else:
            schedule.step(*inputs, return_outputs=False)
        self._step = None
        total = torch.stack(losses).sum().detach().to(image.dtype) if losses else image.new_zeros(())
        distributed.broadcast(total, src=self.world.size - 1)
        return total

    def _loss(self, output: Any, label: Tensor) -> Tensor:
        assert self._step is not None
        step, share = self._step
        return step.loss(output, label) * share

    def _schedule(self, stage: StageModule, piece: Tensor, pieces: int) -> ScheduleGPipe | Schedule1F1B:
        """A schedule for pieces of this shape and type; each rank broadcasts the forms of its outputs."""
        key = (tuple(piece.shape), piece.dtype, pieces)
        schedule = self._schedules.get(key)
        if schedule is None:
            forms: list[Form] = [(tuple(piece.shape), piece.dtype, False)]
            for rank in range(self.world.size):
                payload: list[list[Form]] = [[]]
                if rank == self.world.rank:
                    input_forms, output_forms = forms, forms_of_outputs(stage, forms, piece.device)
                    payload = [output_forms]
                distributed.broadcast_object_list(payload, src=rank)
                (forms,) = payload
            shared = PipelineStage(
                stage,
                self.world.rank,
                self.world.size,
                piece.device,
                input_args=_stand_ins(input_forms),
                output_args=_stand_ins(output_forms),
            )
            kind = Schedule1F1B if pieces >= self.world.size else ScheduleGPipe
            # The loss carries the piece's share already.
            schedule = self._schedules[key] = kind(shared, pieces, loss_fn=self._loss, scale_grads=False)
        return schedule

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """The gradient norm () over all stages. If it is not finite on one rank, it is not on any."""
        weight = next(self._network.parameters())
        local_norm = nn.utils.get_total_norm(gradients) if gradients else weight.new_zeros(())
        squared = local_norm.detach().to(weight.device).square()
        distributed.all_reduce(squared)
        return squared.sqrt()

    @torch.no_grad()
    def whole(self, module: nn.Module) -> nn.Module:
        local_state = dict(named_state(module))
        device = next(iter(local_state.values())).device
        network = copy.deepcopy(self._stages.skeleton).to(device).train(module.training)
        for name, tensor in named_state(network):
            if self._owns(name):
                tensor.copy_(local_state[name])
        for rank in range(self.world.size):
            broadcast_tensors(
                [tensor.detach() for name, tensor in named_state(network) if self._stages.owners[name] == rank],
                source=rank,
            )
        return network

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        local_state = {
            "network": state["network"],
            "average": state["average"],
            "optimizer": _renumbered(state["optimizer"], self._local_layout(), self._layout),
        }
        local_state = tree_map_only(Tensor, lambda value: value.detach().cpu(), local_state)
        if not self.world.first:
            distributed.send_object_list([local_state], dst=0)
            return state
        states = [local_state]
        for rank in range(1, self.world.size):
            # One after another: NCCL receives in GPU memory, where there need not be room for all stages.
            message: list[Any] = [None]
            distributed.recv_object_list(message, src=rank)
            states += message
        # In the order of a single process's, so that the same state makes the same file.
        networks = {}
        for kind in ("network", "average"):
            if state[kind] is not None:
                merged = {name: value for one in states for name, value in one[kind].items()}
                networks[kind] = {name: merged[name] for name in self._stages.skeleton.state_dict()}
        moments = {number: values for one in states for number, values in one["optimizer"]["state"].items()}
        return {**state, **networks, "optimizer": {**states[0]["optimizer"], "state": dict(sorted(moments.items()))}}

    def scatter_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The state of another network or optimizer is returned as it is: restoring then refuses it."""
        optimizer = state["optimizer"]
        fits = [len(group["params"]) for group in optimizer["param_groups"]] == [len(group) for group in self._layout]
        if not fits or state["network"].keys() != self._stages.skeleton.state_dict().keys():
            return state
        networks = {
            kind: {name: value for name, value in state[kind].items() if self._owns(name)}
            for kind in ("network", "average")
            if state[kind]
        }
        return {**state, **networks, "optimizer": _renumbered(optimizer, self._layout, self._local_layout())}

    def close(self) -> None:
        self._schedules.clear()

    def _owns(self, name: str) -> bool:
        return self._stages.owners[name] == self.world.rank

    def _local_layout(self) -> list[list[str]]:
        return [[name for name in group if self._owns(name)] for group in self._layout]


def _pieces(size: int, limit: int) -> int:
    """The most pieces of equal size, up to `limit`."""
    return max(pieces for pieces in range(1, max(1, min(size, limit)) + 1) if size % pieces == 0)


def _stand_ins(forms: list[Form]) -> tuple[Tensor, ...]:
    return tuple(torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad) for shape, dtype, grad in forms)


@dataclass(frozen=True, slots=True)
class Stages:
    """A network cut into stages. Tensors are identified by their names in the whole network."""

    operations: Operations
    places: tuple[int, ...]
    """Places where the stages begin, except the first."""
    owners: dict[str, int]
    """Stage of each parameter and buffer. What no operation uses belongs to the first stage."""
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
    """Parameters and buffers, of any shape, also those not in the state_dict, under all of their names."""
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


class StageModule(nn.Module):
    """What a process computes of the forward pass.

    Called with what the stage before sends (the first: with the image, (B, C, *S)), it returns what the next one takes,
    tensors of any shape (the last: what the network returns).
    """

    def __init__(self, network: nn.Module, stages: Stages, stage: int) -> None:
        super().__init__()
        self.network = network
        self.graph = stages.operations.part(*stages.bounds(stage))
        self.last = stage == stages.count - 1
        self.precision: Callable[[], AbstractContextManager[Any]] = nullcontext
        """Autocast of the step, around the layers."""

    def forward(self, *inputs: Tensor) -> Any:
        interpreter = fx.Interpreter(self.network, graph=self.graph)
        interpreter.extra_traceback = False  # which turns a layer's error into another one, of many lines
        with self.precision():
            outputs = interpreter.run(*inputs)
            # The pipeline checks strides, and sender and receiver must agree; this also computes a deferred norm.
            # One that passes through is a tensor of its own: torch 2.10 detaches outputs in place.
            return tree_map_only(
                Tensor,
                lambda value: value.clone() if any(value is each for each in inputs) else value.contiguous(),
                outputs,
            )


Form = tuple[tuple[int, ...], torch.dtype, bool]
"""Shape, type and requires_grad of a tensor that is sent."""


def forms_of_outputs(stage: StageModule, input_forms: Sequence[Form], device: torch.device) -> list[Form]:
    """The forms of a stage's outputs for inputs of these forms, by a forward pass of a copy."""
    clone = copy.copy(stage)
    clone._modules = {"network": copy.deepcopy(stage.network)}
    with random_state_kept(device), torch.enable_grad():
        inputs = [
            torch.zeros(shape, dtype=dtype, device=device, requires_grad=grad) for shape, dtype, grad in input_forms
        ]
        outputs = clone(*inputs)
    tensors = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    return [(tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for tensor in tensors]


Layout = Sequence[Sequence[str]]
"""Names of the parameters in each group of an optimizer."""


def _renumbered(optimizer: dict[str, Any], before: Layout, after: Layout) -> dict[str, Any]:
    """An optimizer's state in another layout, without the parameters that it lacks."""
    numbers = {name: number for number, name in enumerate(chain.from_iterable(after))}
    old_to_new = {old: numbers[name] for old, name in enumerate(chain.from_iterable(before)) if name in numbers}
    moments = {old_to_new[old]: values for old, values in optimizer["state"].items() if old in old_to_new}
    groups = [
        {**group, "params": [numbers[name] for name in names]}
        for group, names in zip(optimizer["param_groups"], after, strict=True)
    ]
    return {**optimizer, "state": dict(sorted(moments.items())), "param_groups": groups}
