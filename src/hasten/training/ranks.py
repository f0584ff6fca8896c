"""Support for runs of several processes, beside their strategy: checks, losses, random states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from hasten.distribute.case_assignment import parts_mistake
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World
from hasten.nets import random_state
from hasten.sample.share import WHOLE, Share
from hasten.training.plan import RunPlan


def rank_mistakes(planned: RunPlan, strategy: Strategy) -> list[str]:
    """Settings that don't go with this many processes or their strategy, as "dotted.path: what and the remedy"."""
    config, world = planned.config, strategy.world
    mistakes = strategy.mistakes(config)
    size, parts = share_of(planned, strategy).size, config.distribute.parts
    if parts or size > 1:
        dealt = parts_mistake(len(planned.train), parts, config.sample.batch_size, config.train.accumulate, size)
        mistakes += [dealt] if dealt else []
    if world.size == 1:
        if config.sample.fit_batch and planned.device.type == "cpu":
            mistakes.append("sample.fit_batch: searches a GPU's memory; leave it out on a CPU, where it gains nothing")
        return mistakes
    if len(planned.train) < world.size:
        found = f"{len(planned.train)} cases to train on for {world.size} processes"
        mistakes.append(f"data.source: {found}; start as many as there are cases, or fewer")
    if config.sample.fit_batch:
        mistakes.append("sample.fit_batch: each process would find its own; set sample.batch_size and leave it out")
    if config.train.capture:
        mistakes.append("train.capture: a step that several processes share is not captured; leave it out")
    return mistakes


def share_of(planned: RunPlan, strategy: Strategy) -> Share:
    """This rank's share of every batch."""
    if not strategy.splits_batch:
        return WHOLE
    return Share(strategy.world.rank, strategy.world.size, planned.config.train.accumulate)


def mean_over_ranks(losses: Tensor, strategy: Strategy) -> Tensor:
    """(n,) losses of the ranks' shares of the batches, as those of the whole batches."""
    if not strategy.splits_batch or strategy.world.size == 1 or not losses.numel():
        return losses
    total = losses.clone()
    distributed.all_reduce(total)
    return total / strategy.world.size


def states_of_ranks(world: World, device: torch.device) -> list[list[Tensor]]:
    """torch's generators of every rank, the host's and a GPU's, in the ranks' order; none where there is one process.

    Each state is (n,) uint8 on the host. All ranks call it.
    """
    if world.size == 1:
        return []
    states: list[Any] = [None] * world.size
    distributed.all_gather_object(states, random_state.random_states(device))
    return states


def take_up_random(states: list[list[Tensor]], world: World, device: torch.device, *, seed: int, step: int) -> None:
    """This rank's generators as they were saved; fresh ones, of seed, rank and step, where other ranks had saved.

    states: as `states_of_ranks` returns them, (n,) uint8 each.
    """
    if len(states) == world.size:
        random_state.set_random_states(states[world.rank], device)
    elif not world.first:
        seed_rank(seed + step, world)


def seed_rank(seed: int, world: World) -> None:
    """torch's generator of this rank: rank 0's is that of a single process, as a dropout must differ between ranks."""
    torch.manual_seed(seed + 1_000_003 * world.rank)
