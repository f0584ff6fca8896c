"""Ways to learn in fewer steps that `benchmarks.accuracy --parts learning` tries and that Hasten does not have.

Each is a context in which runs use it, or a loss that `loss.name` can name. Those that change how cases are drawn
need runs in one process, without `sample.stages`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.augment import draw, make_program
from hasten.augment.chain import Warp
from hasten.augment.grid import Flip
from hasten.augment.program import Segment
from hasten.config.settled import PlannedTrain
from hasten.engine.step import TrainStep
from hasten.nets import nnunet
from hasten.nets.losses import DiceLoss
from hasten.optim import build
from hasten.optim.base import Amp, BaseOptimizer
from hasten.optim.groups import param_groups
from hasten.optim.muon import is_filter_bank
from hasten.sample.random import hash32

_DICE = DiceLoss(include_background=False, batch=True, to_onehot_y=True, softmax=True)
Context = Callable[[], AbstractContextManager[Any]]


def contexts(data: Path) -> Mapping[str, Context]:
    """By the name of the choice. data: a folder of Decathlon's layout, whose training images whitening reads."""
    return {
        "dirac initialization": partial(mock.patch.object, nnunet, "_initialize", _dirac),
        "whitening first convolution": partial(_whitening, data),
        "residual encoder, stochastic depth 0.1": partial(
            mock.patch.object, nnunet.ResidualBlock, "forward", _stochastic_depth
        ),
        "SOAP, half the learning rate": partial(_optimizer, Soap),
        "SOAP, a quarter of it": partial(_optimizer, Soap),
        "schedule-free AdamW, half the learning rate": partial(_optimizer, ScheduleFree),
        "schedule-free AdamW, a quarter of it": partial(_optimizer, ScheduleFree),
        "mirrored in turn": _mirrored_in_turn,
        "hard cases more often": _hard_cases,
    }


def weighted_dice_ce(scores: Tensor, label: Tensor, weight: float) -> Tensor:
    """() Dice of the soft-max plus cross-entropy in which a voxel of the foreground counts `weight` times."""
    weights = torch.full((scores.shape[1],), weight, dtype=scores.dtype)
    weights[0] = 1
    return _DICE(scores, label) + functional.cross_entropy(scores, label.squeeze(1), weights)


_INITIALIZE = nnunet._initialize
_FORWARD = nnunet.ResidualBlock.forward


def _dirac(module: nn.Module) -> None:
    """The first filters of a convolution of features pass their input on, as in Jordan's 94% on CIFAR-10 (2024)."""
    _INITIALIZE(module)
    if isinstance(module, nn.Conv2d | nn.Conv3d) and module.in_channels > 1 and max(module.kernel_size) > 1:
        # A decoder's convolution passes the upsampled features on, which come first.
        number = min(module.in_channels, module.out_channels)
        with torch.no_grad():
            nn.init.dirac_(module.weight[:number, :number])


@contextmanager
def _whitening(data: Path) -> Iterator[None]:
    filters = _whitening_filters(data)

    def initialize(module: nn.Module) -> None:
        _INITIALIZE(module)
        if isinstance(module, nn.Conv3d) and module.in_channels == 1 and max(module.kernel_size) > 1:
            half = module.out_channels // 2
            with torch.no_grad():
                module.weight.copy_(torch.cat([filters[:half], -filters[:half]]).view_as(module.weight))

    with mock.patch.object(nnunet, "_initialize", initialize):
        yield


def _whitening_filters(data: Path, count: int = 20) -> Tensor:
    """(27, 27): eigenvectors of 3^3 patches of some training images, strongest first, over their deviations."""
    import nibabel

    patches = []
    for path in sorted((data / "imagesTr").glob("*.nii.gz"))[:count]:
        image = np.asarray(nibabel.load(path).dataobj, np.float32)  # type: ignore[attr-defined]
        image = (image - image.mean()) / image.std()
        windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3, 3))[::2, ::2, ::2]
        patches.append(windows.reshape(-1, 27))
    values, vectors = torch.linalg.eigh(torch.from_numpy(np.cov(np.concatenate(patches).T)).float())
    return (vectors / (values + 5e-4).sqrt()).T.flip(0)


def _stochastic_depth(block: nnunet.ResidualBlock, image: Tensor, drop: float = 0.1) -> Tensor:
    if not block.training:
        return _FORWARD(block, image)
    keep = torch.rand(len(image), *(1,) * (image.ndim - 1)) >= drop
    output: Tensor = block.nonlin2(block.conv2(block.conv1(image)) * keep / (1 - drop) + block.skip(image))
    return output


@contextmanager
def _mirrored_in_turn() -> Iterator[None]:
    """Each axis of a case is mirrored in every second epoch: Jordan's derandomised flips (94% on CIFAR-10, 2024).

    `sample.flip_prob` chooses the axes; whether the first epoch is mirrored is random for each case and axis.
    """
    turn: dict[str, Tensor] = {}
    drawn_for, words_of = Segment.drawn_for, draw._words

    def drawn(segment: Segment, case: Tensor, sample: Tensor) -> Any:
        order: Any = segment.order
        turn["case"], turn["epoch"] = case, sample // len(order.keywords["cases"])
        return drawn_for(segment, case, sample)

    def words(stages: Any, key: Tensor) -> Any:
        every = words_of(stages, key)
        readings = (reading for stage in stages if isinstance(stage, Warp) for reading in stage.readings.values())
        for position in {each.position for reading in readings for each in reading.ops if isinstance(each.op, Flip)}:
            mirrored = (hash32(turn["case"] * 64 + position) + turn["epoch"]) % 2 == 0
            every.chance[position] = torch.where(mirrored, 0.0, 1.0)
        return every

    with mock.patch.object(Segment, "drawn_for", drawn), mock.patch.object(draw, "_words", words):
        yield


@contextmanager
def _hard_cases() -> Iterator[None]:
    """Every second sample is of the quarter of cases whose last training loss was highest, once all have one."""
    losses: dict[int, float] = {}
    cases_of_step: dict[int, list[int]] = {}
    entropy: list[Tensor] = []
    in_turn, call = make_program.epoch_order, TrainStep.__call__

    def order(sample: Tensor, *, cases: Tensor, batch_size: int, **options: Any) -> Tensor:
        chosen = in_turn(sample, cases=cases, batch_size=batch_size, **options)
        if len(losses) == len(cases):
            hardest = torch.tensor(sorted(losses, key=losses.__getitem__)[-(len(cases) // 4) :])
            drawn = torch.randint(len(hardest), chosen.shape, generator=torch.Generator().manual_seed(int(sample[0])))
            chosen = torch.where(sample % 2 == 1, hardest[drawn], chosen)
        steps = (sample[::batch_size] // batch_size).tolist()
        cases_of_step.update(zip(steps, chosen.view(-1, batch_size).tolist(), strict=True))
        return chosen

    def forward(step: TrainStep, image: Tensor, label: Tensor) -> Tensor:
        with step.autocast():
            scores = step.network(step.shaped(image))
        each = functional.cross_entropy(scores.detach().float(), label.squeeze(1).long(), reduction="none")
        entropy[:] = [each.flatten(1).mean(1)]
        return step.loss(scores, label)

    def run(step: TrainStep, image: Tensor, label: Tensor, index: int) -> Tensor:
        loss = call(step, image, label, index)
        losses.update(zip(cases_of_step.pop(index), entropy[0].tolist(), strict=True))
        return loss

    with (
        mock.patch.object(make_program, "epoch_order", order),
        mock.patch.object(TrainStep, "forward", forward),
        mock.patch.object(TrainStep, "__call__", run),
    ):
        yield


def _optimizer(kind: type[Soap] | type[ScheduleFree]) -> AbstractContextManager[Any]:
    def create(network: nn.Module, config: PlannedTrain) -> torch.optim.Optimizer:
        return kind(param_groups(network, weight_decay=config.weight_decay), lr=config.learning_rate)

    return mock.patch.object(build, "_optimizer", create)


class OneByOne(BaseOptimizer):
    """Updates one parameter after another."""

    def _update(self, amp: Amp) -> None:
        for group in self.param_groups:
            for parameters, gradients in self._moving(group):
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    self.update_one(parameter, gradient, group)

    def update_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Change a parameter and its state. gradient: in the shape of the parameter."""
        raise NotImplementedError


class Soap(OneByOne):
    """Adam in the eigenbasis of Shampoo's statistics (Vyas et al., 2024), of filter banks; Adam on the rest.

    A side of a filter's matrix (out, in * k^3) that is longer than `longest` keeps its own basis.
    """

    def __init__(self, params: Any, *, lr: float, beta: float = 0.95, every: int = 10, longest: int = 512) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "every": every, "longest": longest, "weight_decay": 0.0})

    def update_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, beta = self.state[parameter], group["beta"]
        gradient = gradient.flatten(1) if parameter.ndim > 1 else gradient[None]
        if not state:
            state |= {"step": 0, "mean": torch.zeros_like(gradient), "square": torch.zeros_like(gradient)}
            short = [side <= group["longest"] and is_filter_bank(parameter) for side in gradient.shape]
            state["sides"] = [
                torch.zeros(side, side) if fits else None for side, fits in zip(gradient.shape, short, strict=True)
            ]
            state["bases"] = [None, None]
        state["step"] += 1
        for number, moment in enumerate(state["sides"]):
            if moment is not None:
                moment.lerp_(gradient @ gradient.T if number == 0 else gradient.T @ gradient, 1 - beta)
                if state["step"] % group["every"] == 1:
                    state["bases"][number] = torch.linalg.eigh(moment + 1e-12 * torch.eye(len(moment)))[1]
        left, right = state["bases"]
        turned = _turned(gradient, left, right)
        state["mean"].lerp_(gradient, 1 - beta)
        state["square"].lerp_(turned.square(), 1 - beta)
        seen = 1 - beta ** state["step"]
        direction = _turned(state["mean"], left, right) / seen / ((state["square"] / seen).sqrt() + 1e-8)
        direction = _turned(direction, *(None if each is None else each.T for each in (left, right)))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.sub_(direction.reshape(parameter.shape), alpha=group["lr"])


def _turned(matrix: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """left^T matrix right."""
    matrix = matrix if left is None else left.T @ matrix
    return matrix if right is None else matrix @ right


class ScheduleFree(OneByOne):
    """Schedule-free AdamW (Defazio et al., 2024). The weights are those that gradients are taken at.

    Of these, `beta` is the average that the method would predict with.
    """

    def __init__(self, params: Any, *, lr: float, beta: float = 0.95, beta2: float = 0.99) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "beta2": beta2, "weight_decay": 0.0})

    def update_one(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state |= {"step": 0, "weights": 0.0, "fast": parameter.clone(), "mean": parameter.clone(),
                      "square": torch.zeros_like(parameter)}  # fmt: skip
        state["step"] += 1
        state["square"].lerp_(gradient.square(), 1 - group["beta2"])
        root = (state["square"] / (1 - group["beta2"] ** state["step"])).sqrt() + 1e-8
        state["fast"].sub_((gradient / root + group["weight_decay"] * parameter) * group["lr"])
        state["weights"] += group["lr"] ** 2
        state["mean"].lerp_(state["fast"], group["lr"] ** 2 / state["weights"])
        parameter.copy_(torch.lerp(state["fast"], state["mean"], group["beta"]))
