"""Everything before the first step: plan, arena, measured switches, network, compiled programs."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from torch import distributed, nn

from hasten.cache.arena import Arena
from hasten.cache.build import Tick, get_arena
from hasten.config.schema import RunConfig, TrainConfig
from hasten.distribute.agree import by_first, first_here, on_all, require_same
from hasten.distribute.exchange import case_parts, stored_cases
from hasten.distribute.group import patient_group
from hasten.distribute.launch.facts import start_facts
from hasten.distribute.parts import CaseParts, part_table
from hasten.distribute.strategy import Strategy, alone
from hasten.engine.allocator import keep_freed_memory
from hasten.engine.foreground import check_labelled, training_range
from hasten.engine.job import Planned, build_net, left_out, plan_run, with_train
from hasten.engine.measure import Engaged
from hasten.engine.parts import Parts, build_parts
from hasten.engine.ranks import rank_mistakes, share_of
from hasten.engine.settle import MEASURE_SHARE, example_of, fitting_steps, keep_layers, settle_variant, time_left
from hasten.nets.surgery.operate import operate
from hasten.observe.clock import Clock

log = logging.getLogger(__name__)

Group = distributed.ProcessGroup | None


def put_together(config: RunConfig, plan: Path | None, clock: Clock, strategy: Strategy | None = None) -> Parts:
    """A run that is ready for its first step. Raises ValueError for what is wrong with the settings or the data.

    Of several ranks, the first one of each host does what is kept in the cache, and rank 0 measures for all.
    """
    strategy = strategy or alone()
    world = strategy.world
    send = config.distribute.exchange == "send" and config.distribute.parts > 0 and world.size > 1

    def read_plan() -> Planned:
        with first_here(world, group):
            planned = plan_run(config, plan, world=world)
        mistakes = rank_mistakes(planned, strategy)
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return planned

    def prepare() -> tuple[Planned, Arena, CaseParts | None]:
        with first_here(world, group):
            arena = arena_of(planned, send=send, tick=_within(planned, clock))
        held = _held(planned, strategy, send=send) if config.distribute.parts else None
        return _labelled(planned, arena), arena, held

    with patient_group() as group:
        with clock.span("read_plan"):
            planned = on_all(world, read_plan, group=group)
            if world.size > 1:
                ids = [case.id for case in (*planned.train, *planned.validation)]
                require_same(world, start_facts(config, planned.fingerprint, cases=ids))
        with clock.span("prepare"):
            planned, arena, held = on_all(world, prepare, group=group)
        for warning in planned.warnings if world.first else ():
            log.warning("%s", warning)
        return parts_of(planned, arena, clock, strategy, group, held)


def _within(planned: Planned, clock: Clock) -> Tick:
    """A tick of the preparation that ends it with a ValueError when train.max_seconds has passed."""

    def tick(done: int, total: int) -> None:
        if time_left(planned, clock) < 0:
            limit = planned.config.train.max_seconds
            raise ValueError(
                f"train.max_seconds={limit:g}: the time was up when {done} of {total} cases were prepared; they stay "
                "in the cache, so that the same command goes on after them; or give more time"
            )

    return tick


def arena_of(planned: Planned, *, send: bool = False, tick: Tick | None = None) -> Arena:
    """The run's prepared cases, from the cache or prepared into it.

    Where the training cases are dealt into parts it is read for validation alone, and stays in its file; it holds only
    those cases where others are sent between processes.
    """
    config, first = planned.config, tuple(case.id for case in planned.train)
    if send:
        ids = [case.id for case in planned.validation]
        return stored_cases(planned.case_set, ids, config.prepare, config.cache)
    if config.distribute.parts:
        return get_arena(planned.case_set, config.prepare, replace(config.cache, home="file"), tick=tick)
    return get_arena(planned.case_set, config.prepare, config.cache, device=str(planned.device), first=first, tick=tick)


def _labelled(planned: Planned, arena: Arena) -> Planned:
    """The same with what the prepared label maps tell. Raises ValueError where nothing is labelled."""
    parts = planned.case_set, planned.train, planned.validation
    return replace(
        planned,
        warnings=(*left_out(*parts), *check_labelled(planned.case_set, arena, planned.train, planned.validation)),
        foreground=training_range(arena, planned.train, planned.case_set.spatial_dims),
    )


def _held(planned: Planned, strategy: Strategy, *, send: bool) -> CaseParts:
    """This rank's training cases, in memory."""
    ids, world = [case.id for case in planned.train], strategy.world
    share = share_of(planned, strategy)
    held = case_parts(
        planned.config, planned.case_set, ids, planned.fingerprint, share, planned.device,
        send=send, neighbours=world.local_size,
    )  # fmt: skip
    held.arena(0)
    if world.first:
        log.info("training cases in parts\n%s", part_table(held.deal, share.size))
    return held


def parts_of(
    planned: Planned,
    arena: Arena,
    clock: Clock,
    strategy: Strategy | None = None,
    group: Group = None,
    held: CaseParts | None = None,
) -> Parts:
    """Network, measured switches and programs, on cases that lie ready."""
    strategy = strategy or alone()
    if not strategy.whole_network:
        # Neither is the network compiled nor a loss scaled where a rank has but a part of it.
        planned = with_train(planned, compile=False, capture=False)
    with clock.span("tune"):
        network = build_net(planned)
        # MONAI's blocks with an instance norm are known at sight; looking at a forward pass takes a second.
        done = operate(network)
        done = done if done.fused else operate(network, example_of(planned, small=True))
        kept = keep_freed_memory() if planned.device.type == "cpu" else None
        budget_s = MEASURE_SHARE * time_left(planned, clock)
        planned, engaged, seconds = _settle(planned, network, strategy, group, budget_s)
        steps = by_first(strategy.world, lambda: fitting_steps(planned, clock, seconds), group=group)
        planned = with_train(planned, steps=steps)
        if kept is not None:
            engaged["kept host memory"] = kept
        engaged["surgery"] = Engaged(done.fused + done.biases > 0, str(done))
    return build_parts(
        planned, arena, network, clock, engaged=engaged, step_seconds=seconds, strategy=strategy, held=held
    )


def _settle(
    planned: Planned, network: nn.Module, strategy: Strategy, group: Group, budget_s: float
) -> tuple[Planned, dict[str, Engaged], float]:
    """`settle_variant` on rank 0, whose choice is that of all: two that measure might choose differently."""
    world = strategy.world
    if world.size == 1:
        return settle_variant(planned, network, budget_s)

    def measured() -> tuple[TrainConfig, dict[str, Engaged], float]:
        found, engaged, seconds = settle_variant(planned, network, budget_s)
        return found.config.train, engaged, seconds

    train, engaged, seconds = by_first(world, measured, group=group)
    if not world.first:
        keep_layers(planned, network)
    engaged["strategy"] = Engaged(True, f"{strategy.name} on {world.size} processes")
    return with_train(planned, precision=train.precision, channels_last=train.channels_last), engaged, seconds
