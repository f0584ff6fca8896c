"""Pipeline: every process has some of the layers, and pieces of a batch go through them one behind the other.

For networks whose activations don't fit into one device. Stages are cut where they cost about the same; torch's
schedules run them: 1F1B, in which a stage holds the activations of at most as many pieces as there are stages from it
to the end, or GPipe where there are fewer pieces than stages.
"""

from __future__ import annotations

import copy
import logging
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from hasten.config.schema import DistributeConfig, RunConfig
from hasten.distribute.agree import from_first
from hasten.distribute.cut import Costs, count_costs, cut_places, operations_of
from hasten.distribute.ddp import broadcast_weights
from hasten.distribute.pipeline_state import gathered_state, scattered_state
from hasten.distribute.stage import Form, Stage, Stages, forms_given, keep_stage, named_state, stages_of
from hasten.distribute.strategy import Step, Strategy
from hasten.distribute.world import World

log = logging.getLogger(__name__)


class Pipeline(Strategy):
    """Stages by layers. Every rank gets the whole batch; the first takes the image and the last the label.

    A loss that sums over a batch, as batch Dice does, sees a piece at a time, and so does a batch norm: as with
    `train.accumulate`, of which each piece is cut again. Validation has the whole network on every rank.
    """

    name = "pipeline"
    splits_batch = False
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
        """The step that is under way, and what the loss of a piece counts in it."""

    def mistakes(self, config: RunConfig) -> list[str]:
        train, sample, shared = config.train, config.sample, config.distribute
        found = []
        if train.precision == "fp16":
            found.append("train.precision: pipeline has no loss scaling, which fp16 needs; use bf16, tf32 or fp32")
        if train.activations != "all":
            found.append("train.activations: pipeline recomputes nothing; use all, or more processes")
        found += [
            f"train.{name}: pipeline has only some of the layers in a process; set it to false"
            for name in ("compile", "compile_blocks", "capture", "validate_async")
            if getattr(train, name)
        ]
        if sample.fit_batch:
            found.append("sample.fit_batch: pipeline can't try batches out on a part of the layers; give batch_size")
        if shared.sync_norm:
            found.append("distribute.sync_norm: pipeline has each norm in one process only; set it to false")
        if shared.gradients != "fp32":
            found.append("distribute.gradients: pipeline sends no gradients of weights; set it to fp32")
        piece = (sample.batch_size or 0) // max(1, train.accumulate)
        if piece and piece % shared.micro_batches:
            found.append(
                f"distribute.micro_batches: {shared.micro_batches} can't share {piece} patches (sample.batch_size over "
                f"train.accumulate) evenly; use {_pieces(piece, shared.micro_batches)}"
            )
        return found

    def place(self, network: nn.Module, average: nn.Module | None) -> tuple[nn.Module, nn.Module | None]:
        """Both still whole; `share_optimizer` leaves the stage's layers in them, once the optimizer knows them all."""
        for module in (network, average):
            if module is not None:
                broadcast_weights(module)
        operations = operations_of(network)
        counted = count_costs(network, operations)
        # Counted alike on all ranks, but for layers that choose another way on another machine.
        places = from_first(self.world, cut_places(counted, self.world.size))
        self._stages = stages_of(network, operations, places)
        self._network, self._average = network, average
        log.info("%s", describe(self._stages, counted))
        return network, average

    def share_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        names = {id(weight): name for name, weight in self._network.named_parameters()}
        self._layout = [[names[id(weight)] for weight in group["params"]] for group in optimizer.param_groups]
        mine = {id(weight) for name, weight in self._network.named_parameters() if self._owns(name)}
        for group in optimizer.param_groups:
            group["params"][:] = [weight for weight in group["params"] if id(weight) in mine]
        for module in (self._network, self._average):
            if module is not None:
                keep_stage(module, self._stages, self.world.rank)
        return optimizer

    def wrap(self, network: nn.Module) -> nn.Module:
        assert network is self._network, "a compiled network can't be cut"
        return Stage(network, self._stages, self.world.rank).train(network.training)

    def run_piece(self, step: Step, image: Tensor, label: Tensor, share: float) -> Tensor:
        image = step.shaped(image)
        stage = step.network
        assert isinstance(stage, Stage)
        stage.precision = step.autocast
        pieces = _pieces(len(image), self.config.micro_batches)
        schedule = self._schedule(stage, image[: len(image) // pieces], pieces)
        losses: list[Tensor] = []
        self._step = step, share / pieces
        given = (image,) if self.world.first else ()
        if stage.last:
            schedule.step(*given, target=label, losses=losses, return_outputs=False)
        else:
            schedule.step(*given, return_outputs=False)
        self._step = None
        total = torch.stack(losses).sum().detach().to(image.dtype) if losses else image.new_zeros(())
        distributed.broadcast(total, src=self.world.size - 1)
        return total

    def _loss(self, output: Any, label: Tensor) -> Tensor:
        assert self._step is not None
        step, share = self._step
        return step.loss(output, label) * share

    def _schedule(self, stage: Stage, piece: Tensor, pieces: int) -> ScheduleGPipe | Schedule1F1B:
        """A schedule for pieces of this form; the ranks tell each other the forms of what they send."""
        key = (tuple(piece.shape), piece.dtype, pieces)
        found = self._schedules.get(key)
        if found is None:
            forms: list[Form] = [(tuple(piece.shape), piece.dtype, False)]
            for rank in range(self.world.size):
                box = [None]
                if rank == self.world.rank:
                    taken = forms
                    given = forms_given(stage, taken, piece.device)
                    box = [given]  # type: ignore[list-item]
                distributed.broadcast_object_list(box, src=rank)
                forms = box[0]  # type: ignore[assignment]
            shared = PipelineStage(
                stage, self.world.rank, self.world.size, piece.device,
                input_args=_stand_ins(taken), output_args=_stand_ins(given),
            )  # fmt: skip
            kind = Schedule1F1B if pieces >= self.world.size else ScheduleGPipe
            # The loss carries the piece's share already.
            found = self._schedules[key] = kind(shared, pieces, loss_fn=self._loss, scale_grads=False)
        return found

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """Over the stages. Not finite on all ranks if it is not on one."""
        weight = next(self._network.parameters())
        own = nn.utils.get_total_norm(gradients) if gradients else weight.new_zeros(())
        squared = own.detach().to(weight.device).square()
        distributed.all_reduce(squared)
        return squared.sqrt()

    @torch.no_grad()
    def whole(self, module: nn.Module) -> nn.Module:
        own = dict(named_state(module))
        device = next(iter(own.values())).device
        found = copy.deepcopy(self._stages.skeleton).to(device).train(module.training)
        for name, tensor in named_state(found):
            if self._owns(name):
                tensor.copy_(own[name])
        for rank in range(self.world.size):
            parts = [tensor for name, tensor in named_state(found) if self._stages.owners[name] == rank]
            # In an order that all ranks have.
            for kind in dict.fromkeys(tensor.dtype for tensor in parts):
                _broadcast([tensor for tensor in parts if tensor.dtype == kind], rank)
        return found

    def gathered(self, state: dict[str, Any]) -> dict[str, Any]:
        return gathered_state(state, self.world, self._layout, self._own_layout(), list(self._names()))

    def scattered(self, state: dict[str, Any]) -> dict[str, Any]:
        own = {name for name in self._names() if self._owns(name)}
        return scattered_state(state, self._layout, self._own_layout(), self._names(), own)

    def close(self) -> None:
        self._schedules.clear()

    def _owns(self, name: str) -> bool:
        return self._stages.owners[name] == self.world.rank

    def _own_layout(self) -> list[list[str]]:
        return [[name for name in group if self._owns(name)] for group in self._layout]

    def _names(self) -> list[str]:
        """What a single process's checkpoint holds of a network, in its order."""
        return list(self._stages.skeleton.state_dict())


def describe(stages: Stages, counted: Costs) -> str:
    """Each stage's share of the time, as counted, and of the activations."""
    bounds = [stages.bounds(stage) for stage in range(stages.count)]
    time = [sum(counted.costs[begin:end]) / sum(counted.costs) for begin, end in bounds]
    numbers = [sum(counted.numbers[begin:end]) / max(1, sum(counted.numbers)) for begin, end in bounds]
    shares = ", ".join(f"{cost:.0%} and {kept:.0%}" for cost, kept in zip(time, numbers, strict=True))
    return f"pipeline of {stages.count} stages with these shares of time and activations: {shares}"


def _broadcast(tensors: list[Tensor], source: int) -> None:
    """Tensors of one type become those of rank `source`, in one message."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    distributed.broadcast(flat, src=source)
    for tensor, value in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(value.view(tensor.shape))


def _pieces(size: int, wanted: int) -> int:
    """The most pieces of equal size, up to `wanted`."""
    return max(pieces for pieces in range(1, max(1, min(size, wanted)) + 1) if size % pieces == 0)


def _stand_ins(forms: list[Form]) -> tuple[Tensor, ...]:
    return tuple(torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad) for shape, dtype, grad in forms)
