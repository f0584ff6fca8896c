"""The contract of every strategy: whichever way ranks share a training, it is that of one process.

`python -m tests.contracts.strategies NAME FOLDER` runs all of it on one rank of a job, through `TrainStep` and
`Update`, and prints its findings as JSON: {case: {finding: value}}. A finding is the largest difference to one process
with the whole batch, relative to the largest value; or, for `agree`, whether all ranks hold the same bits; or a count.
FOLDER gets the state after two steps as a checkpoint, NAME-WORLD.pt. `... moved NAME FOLDER STATE...` takes up such
files of others, and prints the findings of that alone.

To put a strategy under the contract, add a row to STRATEGIES.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, distributed

from hasten.checkpoint.file import read_checkpoint, write_checkpoint
from hasten.checkpoint.state import restore_state, training_state
from hasten.config.schema import DistributeConfig, LossConfig, NetworkConfig, StrategyName, TrainConfig
from hasten.distribute.build_strategy import build_strategy
from hasten.distribute.consensus import broadcast_from_rank0
from hasten.distribute.group import process_group
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World, detect_world
from hasten.nets.build import build_network
from hasten.nets.losses.make_loss import build_loss
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer
from hasten.runtime.precision import memory_format
from hasten.training.step import TrainStep
from hasten.training.update import Update
from tests.contracts.states import compare, everyones, same_on_all
from tests.distribute.ranks import tell


@dataclass(frozen=True, kw_only=True)
class Row:
    """A strategy under the contract."""

    name: StrategyName
    worlds: tuple[int, ...] = (2, 4)
    settings: dict[str, Any] = field(default_factory=dict)
    """Fields of DistributeConfig besides the strategy."""
    needs: str = ""
    """A module without which the row is skipped."""
    differs: dict[str, str] = field(default_factory=dict)
    """What of the contract it need not keep, as "case", "finding" or "case.finding", each with the reason."""


STRATEGIES: tuple[Row, ...] = (
    Row(
        name="single",
        worlds=(1,),
        differs={"sync_norm": "one process has nothing to share", "gradient.losses_differ": "one loss"},
    ),
    Row(
        name="dp",
        worlds=(1,),
        differs={"sync_norm": "refused: its threads share no moments", "gradient.losses_differ": "one loss"},
    ),
    Row(name="ddp"),
    Row(name="fsdp", differs={"muon": "refused: it makes whole filters orthogonal, of which a rank has some rows"}),
    Row(
        name="horovod",
        needs="horovod",
        differs={"accumulated.exchanges": "sent by Horovod's own core: tests/distribute/test_horovod.py counts them"},
    ),
    Row(
        name="pipeline",
        settings={"micro_batches": 4},
        differs={
            "gradient.losses_differ": "all ranks take part in one loss",
            "batch_dice": "a loss sees a piece of the batch at a time, as with train.accumulate",
            "region_dice": "a loss sees a piece of the batch at a time, as with train.accumulate",
            "sync_norm": "refused: each norm is in one process",
            "accumulated.exchanges": "sends activations, not gradients of weights",
        },
    ),
)
"""One row a strategy."""

TOLERANCE = {"fp32": 2e-5, "muon": 1e-5}
"""Of differences, where it is not that of float64."""
EXACT = 1e-8
"""float64: sums of shares and of a batch are rounded differently, AdamW makes 1e-11 of it, and nothing else differs."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training that both a strategy and one process go through."""

    steps: int = 2
    dtype: torch.dtype = torch.float64
    optimizer: Any = "sgd"
    rate: float = 0.1
    momentum: float = 0.0
    clip_norm: float = 0.0
    ema: float = 0.9
    accumulate: int = 1
    batch_dice: bool = False
    regions: tuple[tuple[int, ...], ...] = ()
    norm: Any = "instance"
    settings: dict[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {
    # Plain SGD at rate 1: the weights have moved by the gradient.
    "gradient": Case(steps=1, rate=1.0),
    "fp32": Case(steps=4, dtype=torch.float32, momentum=0.9),
    "clipped": Case(steps=4, optimizer="adamw", rate=0.01, clip_norm=0.05),
    "muon": Case(optimizer="muon", rate=0.01),
    "accumulated": Case(accumulate=2, rate=1.0),
    "batch_dice": Case(batch_dice=True, rate=1.0),
    "region_dice": Case(batch_dice=True, regions=((1, 2), (2,)), rate=1.0),
    "sync_norm": Case(norm="batch", rate=0.5, settings={"sync_norm": True}),
}
MOVED = Case(steps=2, optimizer="adamw", rate=0.01, clip_norm=0.5)
"""Saved after so many steps and gone on with for as many, here or elsewhere."""
BATCH = 8


class Trainee:
    """A network in training, put together in the order of the engine, and what it showed."""

    def __init__(self, case: Case, strategy: Strategy, *, channels_last: bool = False) -> None:
        self.case, self.strategy = case, strategy
        train = TrainConfig(
            optimizer=case.optimizer,
            learning_rate=case.rate,
            momentum=case.momentum,
            weight_decay=0.0,
        )
        net = NetworkConfig(
            name="unet", channels=(4, 8, 8), strides=((1, 2, 2), (1, 2, 2)), num_res_units=1, norm=case.norm
        )
        # Ranks begin apart, as `place` has to give all of them rank 0's weights.
        torch.manual_seed(strategy.world.rank)
        outputs = len(case.regions) or 3
        network = build_network(net, num_channels=1, num_classes=outputs, spatial_dims=2).to(case.dtype)
        network.to(memory_format=memory_format(2, channels_last))  # type: ignore[call-overload]
        self.network, average = strategy.place(network, average_of(network) if case.ema else None)
        self.optimizer = strategy.share_optimizer(build_optimizer(self.network, train))
        self.update = Update(
            weights=self.network,
            optimizer=self.optimizer,
            average=average,
            average_decay=case.ema,
            clip_norm=case.clip_norm,
            strategy=strategy,
        )
        split = strategy.splits_batch and strategy.same_loss and strategy.world.size > 1
        self.step = TrainStep(
            network=strategy.wrap(self.network).train(),
            loss=build_loss(LossConfig(name="dice_ce", batch=case.batch_dice), over_ranks=split, regions=case.regions),
            update=self.update,
            spatial_dims=2,
            channels_last=channels_last,
            device=torch.device("cpu"),
            accumulate=case.accumulate,
            strategy=strategy,
        )
        self.norms: list[float] = []
        self.losses: list[float] = []
        total_norm = strategy.total_norm

        def listened(gradients: list[Tensor]) -> Tensor:
            norm = total_norm(gradients)
            self.norms.append(float(norm))
            return norm

        strategy.total_norm = listened  # type: ignore[method-assign]

    def run(self, steps: int, first: int = 0) -> Trainee:
        world = self.strategy.world
        for index in range(first, first + steps):
            image, label = batch(index, self.case.dtype)
            if self.strategy.splits_batch:
                image, label = image.chunk(world.size)[world.rank], label.chunk(world.size)[world.rank]
            self.losses.append(float(self.step(image, label, index)))
        return self

    def state(self, step: int) -> dict[str, Any]:
        state = training_state(network=self.network, optimizer=self.optimizer, step=step, average=self.update.average)
        return self.strategy.gather_state(state)

    def restore(self, state: dict[str, Any]) -> int:
        mine = self.strategy.scatter_state(copy.deepcopy(state))
        return restore_state(mine, network=self.network, optimizer=self.optimizer, average=self.update.average)

    def whole(self) -> list[dict[str, Tensor]]:
        """Weights and average, as validation gets them."""
        average = self.update.average
        modules = [self.network] if average is None else [self.network, average]
        return [copy.deepcopy(self.strategy.whole(module).state_dict()) for module in modules]


def batch(index: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Image (B, 1, 16, 16) and label of a 0-based step; contrasts differ much, and so do losses."""
    generator = torch.Generator().manual_seed(100 + index)
    image = torch.randn(BATCH, 1, 16, 16, generator=generator, dtype=torch.float64)
    label = (image > 0.3).long() + (image > 1.0)
    scale = torch.linspace(0.1, 3.0, BATCH, dtype=torch.float64).view(-1, 1, 1, 1)
    label[: BATCH // 2] = label[: BATCH // 2].flip(-1)
    return (image * scale).to(dtype), label.to(torch.uint8)


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    """What of a state the ranks' number may not change."""
    return {name: state[name] for name in ("step", "network", "average", "optimizer", "optimizer_name")}


def reference(case: Case) -> Trainee:
    """One process, with the whole batch."""
    return Trainee(case, Strategy(World(), DistributeConfig()))


def run_case(case: Case, made: Callable[[Case], Strategy]) -> dict[str, Any]:
    """A case's findings, complete on rank 0."""
    trainee = Trainee(case, made(case)).run(case.steps)
    rank = trainee.strategy.world.rank
    norms, losses = everyones(trainee.norms), everyones(trainee.losses)
    whole = trainee.whole()
    actual: dict[str, Any] = {"agree": same_on_all(whole), "losses_differ": any(one != losses[0] for one in losses)}
    state = comparable(trainee.state(case.steps))
    trainee.strategy.close()
    if rank != 0:
        return actual
    wanted = reference(case).run(case.steps)
    expected = comparable(wanted.state(case.steps))
    first = _first_weights(case)
    means = [sum(each) / len(each) for each in zip(*losses, strict=True)]
    return actual | {
        "weights": compare(state["network"], expected["network"]),
        "average": compare(state["average"], expected["average"]),
        "whole": compare(whole, wanted.whole()),
        "moments": compare(state["optimizer"], expected["optimizer"]),
        "losses": compare(means, wanted.losses),
        "norms": compare(norms, [wanted.norms] * len(norms)),
        "bites": sum(norm > case.clip_norm for norm in wanted.norms) if case.clip_norm else 0,
        "learned": compare(expected["network"], first),
    }


def _first_weights(case: Case) -> dict[str, Tensor]:
    return dict(reference(case).network.state_dict())


def run_moved(made: Callable[[Case], Strategy], name: str, folder: Path, others: list[Path]) -> dict[str, Any]:
    """A state taken from here to one process and back, and from others to here: each goes on as if nothing was."""
    strategy = made(MOVED)
    world, first = strategy.world, strategy.world.first
    steps = MOVED.steps
    trainee = Trainee(MOVED, strategy).run(steps)
    path = folder / f"{name}-{world.size}.pt"
    mine = trainee.state(steps)
    if first:
        write_checkpoint(path, mine)
    on_disk = folder / f"{name}-{world.size}-single.pt"
    if first:
        plain = reference(MOVED).run(steps)
        write_checkpoint(on_disk, plain.state(steps))
    if distributed.is_initialized():
        distributed.barrier()
    gone_on = comparable(trainee.run(steps, steps).state(2 * steps))
    strategy.close()
    results: dict[str, Any] = {}
    wanted = None
    if first:
        wanted = comparable(reference(MOVED).run(2 * steps).state(2 * steps))
        results["undisturbed"] = compare(gone_on, wanted)
        alone = reference(MOVED)
        results["to_single"] = compare(_continued(alone, path), wanted)
    sources = {"to_itself": path, "from_single": on_disk, **{f"from_{other.stem}": other for other in others}}
    for label, source in sources.items():
        fresh = Trainee(MOVED, made(MOVED))
        went = _continued(fresh, source)
        fresh.strategy.close()
        if first:
            results[label] = compare(went, wanted)
    return results


def _continued(trainee: Trainee, source: Path) -> dict[str, Any]:
    at = trainee.restore(read_checkpoint(source))
    return comparable(trainee.run(MOVED.steps, at).state(at + MOVED.steps))


def count_exchanges(made: Callable[[Case], Strategy]) -> dict[str, int]:
    """Sums over ranks that a step asks for, with one piece and with two; the first step, which sets up, not counted."""
    results = {}
    for pieces in (1, 2):
        case = replace(CASES["accumulated"], accumulate=pieces)
        trainee = Trainee(case, made(case)).run(1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
            trainee.run(1, 1)
        names = ("c10d::allreduce", "c10d::reduce_scatter", "c10d::_reduce_scatter", "c10d::reduce_")
        results[str(pieces)] = sum(event.name.startswith(names) for event in recorded.events())
        trainee.strategy.close()
    return results


def run_all(row: Row, world: World, folder: Path) -> dict[str, Any]:
    made = partial(_strategy, row, world)
    results: dict[str, Any] = {name: run_case(case, made) for name, case in CASES.items() if name not in row.differs}
    if "accumulated" in results:
        results["accumulated"]["exchanges"] = count_exchanges(made)
    if "moved" not in row.differs:
        results["moved"] = run_moved(made, row.name, folder, [])
    return results


def _strategy(row: Row, world: World, case: Case) -> Strategy:
    return build_strategy(DistributeConfig(strategy=row.name, timeout_s=300, **(case.settings | row.settings)), world)


def row_of(name: str) -> Row:
    return next(row for row in STRATEGIES if row.name == name)


def main() -> None:
    only_moved = sys.argv[1] == "moved"
    name, folder, *others = sys.argv[1 + only_moved :]
    torch.set_num_threads(1)
    world, row = detect_world(), row_of(name)
    with process_group(world, DistributeConfig(timeout_s=300), torch.device("cpu")):
        if not only_moved:
            tell(run_all(row, world, Path(folder)))
        # A folder of its own: the files of others are not written again.
        with TemporaryDirectory() as own:
            here = Path(broadcast_from_rank0(world, own))
            result = run_moved(partial(_strategy, row, world), name, here, [Path(other) for other in others])
            everyones(None)
        tell(result)


if __name__ == "__main__":
    main()
