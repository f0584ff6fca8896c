"""The prepared cases of a run: from the cache or prepared into it, whole or in parts."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from hasten.cache.arena import Arena
from hasten.cache.build import Tick, get_arena
from hasten.config.decision import Accelerator, Accelerators
from hasten.distribute.case_assignment import RankCases, part_balance, rank_cases
from hasten.distribute.consensus import local_rank0_first
from hasten.distribute.strategy import Strategy
from hasten.observe.clock import Clock
from hasten.observe.progress import PLAIN_EVERY
from hasten.prediction.foreground import check_labelled, training_range
from hasten.training.choose.autotune import Group
from hasten.training.plan import RunPlan
from hasten.training.ranks import share_of

log = logging.getLogger(__name__)


def prepare_cases(
    planned: RunPlan, clock: Clock, strategy: Strategy, group: Group
) -> tuple[RunPlan, Arena, RankCases | None]:
    """The run with the statistics of its label maps, its cases, and this rank's training cases where ranks hold parts.

    The first rank of each host fills the cache. Raises ValueError where nothing is labelled, a case can't be prepared,
    or train.budget has passed.
    """
    with local_rank0_first(strategy.world, group):
        arena = arena_of(planned, tick=_within(planned, clock))
    parts = None
    if planned.config.distribute.parts:
        ids, share = [case.id for case in planned.train], share_of(planned, strategy)
        size = strategy.world.local_size
        parts = rank_cases(
            planned.config, planned.case_set, ids, planned.fingerprint, share, planned.device, local_size=size
        )
        parts.arena(0)
        if strategy.world.first:
            log.info("training cases: %s", part_balance(parts.assignment))
    # Now the label maps are known.
    case_set = planned.case_set
    warnings = (*planned.warnings, *check_labelled(case_set, arena, planned.train, planned.validation))
    whole = case_set.ignore is None
    foreground = training_range(arena, planned.train, case_set.spatial_dims) if whole else {}
    return replace(planned, warnings=warnings, foreground=foreground), arena, parts


def _within(planned: RunPlan, clock: Clock) -> Tick:
    """Progress of the preparation, now and then; raises ValueError when train.budget has passed."""

    begin = due = clock.elapsed
    limit = planned.config.train.budget

    def tick(done: int, total: int) -> None:
        nonlocal due
        if clock.elapsed >= due:
            clock.tell(f"preparing  {done} of {total} cases are ready")
            due = clock.elapsed + PLAIN_EVERY
        if clock.left(limit) < 0:
            needed = begin + (clock.elapsed - begin) * total / max(1, done)
            raise ValueError(
                f"train.budget={limit:g}s: the time was up when {done} of {total} cases were prepared; all take about "
                f"{needed:.0f} s. Run the same command again, which continues there, or raise train.budget"
            )

    return tick


def arena_of(planned: RunPlan, *, tick: Tick | None = None) -> Arena:
    """The run's prepared cases, from the cache or prepared into it.

    Where the training cases are dealt into parts it is read for validation alone, and stays in its file.
    """
    config = planned.config
    whole = partial(get_arena, planned.case_set, config.prepare, tick=tick, files=planned.files)
    if config.distribute.parts:
        return whole(replace(config.cache, home="file"))
    return whole(config.cache, device=str(planned.device))


def homes_of(arena: Arena, parts: RankCases | None) -> Accelerators:
    """Homes of the training cases, for the report."""
    trained = arena if parts is None else parts.arena(0)
    size = f"{trained.num_bytes / 2**20:.0f} MiB for {len(trained.ids)} cases"
    homes = {"arena home": Accelerator(True, "measured", f"{trained.home}, {size}")}
    if parts is None:
        return homes
    return {"cases in parts": Accelerator(True, "user", part_balance(parts.assignment)), **homes}
