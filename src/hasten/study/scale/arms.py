"""Which trainings a scaling study is made of, and the settings of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hasten.config.schema import RunConfig, StrategyName
from hasten.config.settled import PlannedRun
from hasten.distribute.weak_scaling import weakly_scaled
from hasten.sample.share import share_mistake
from hasten.study.scale.run_logs import SINGLE

Mode = Literal["strong", "weak"]
STRATEGIES: tuple[StrategyName, ...] = ("ddp", "fsdp", "zero1", "pipeline", "local_sgd", "horovod")
"""Those that share a training among processes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One training."""

    strategy: StrategyName
    world: int
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.strategy}-{self.world}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.strategy}, {self.world} worker{'' if self.world == 1 else 's'}, seed {self.seed}"


def arms_of(worlds: Sequence[int], strategies: Sequence[StrategyName], seeds: Sequence[int]) -> list[Arm]:
    """Every training in the order in which they are run: all of one seed, then of the next, each time turned round.

    So a machine that grows slower favours no count of workers. One process is trained once a seed, for all strategies.
    """
    arms: list[Arm] = []
    alone: tuple[StrategyName, ...] = ("single",)
    for turn, seed in enumerate(seeds):
        of_seed = [
            Arm(strategy=strategy, world=world, seed=seed)
            for world in worlds
            for strategy in (alone if world == 1 else strategies)
        ]
        arms += of_seed[:: 1 if turn % 2 == 0 else -1]
    return arms


def settings_of(base: PlannedRun, arm: Arm, mode: Mode) -> PlannedRun:
    """What an arm trains with. base: a run of one process.

    Raises ValueError for a batch that can't be dealt among the arm's processes.
    """
    config = weakly_scaled(base, arm.world, base.sample.batch_size) if mode == "weak" else base
    # The stages of a pipeline all see the whole batch.
    if arm.world > 1 and arm.strategy != "pipeline":
        mistake = share_mistake(config.sample.batch_size, config.train.accumulate, arm.world, config.distribute.parts)
        if mistake is not None:
            raise ValueError(f"{mistake}; --mode weak multiplies it with the workers")
    return dataclasses.replace(
        config,
        train=dataclasses.replace(config.train, seed=arm.seed),
        distribute=dataclasses.replace(config.distribute, strategy=arm.strategy),
    )


def check_base(config: RunConfig, worlds: Sequence[int], num_train: int) -> None:
    """Raise ValueError for a run that no study can be made of."""
    if config.train.max_seconds is not None:
        raise ValueError("train.max_seconds: cuts the slower trainings short, so they can't be compared; leave it out")
    if config.distribute.strategy not in ("auto", SINGLE):
        raise ValueError(f"distribute.strategy: --strategies chooses it here; leave {config.distribute.strategy} out")
    most = max(worlds)
    if num_train < most:
        raise ValueError(f"--worlds {most}: there are {num_train} cases to train on, and each worker needs one")
