"""Everything before the first step: plan, arena, measured switches, network, compiled programs."""

from __future__ import annotations

from pathlib import Path

from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.config.schema import RunConfig
from hasten.engine.allocator import keep_freed_memory
from hasten.engine.job import Planned, build_net, plan_run
from hasten.engine.measure import Engaged
from hasten.engine.parts import Parts, build_parts
from hasten.engine.settle import example_of, settle_variant
from hasten.nets.surgery.operate import operate
from hasten.observe.clock import Clock


def put_together(config: RunConfig, plan: Path | None, clock: Clock) -> Parts:
    """A run that is ready for its first step. Raises ValueError for what is wrong with the settings or the data."""
    with clock.span("read_plan"):
        planned = plan_run(config, plan)
    with clock.span("prepare"):
        arena = arena_of(planned)
    return parts_of(planned, arena, clock)


def arena_of(planned: Planned) -> Arena:
    """The run's prepared cases, from the cache or prepared into it."""
    config, first = planned.config, tuple(case.id for case in planned.train)
    return get_arena(planned.case_set, config.prepare, config.cache, device=str(planned.device), first=first)


def parts_of(planned: Planned, arena: Arena, clock: Clock) -> Parts:
    """Network, measured switches and programs, on cases that lie ready."""
    with clock.span("tune"):
        network = build_net(planned)
        # MONAI's blocks with an instance norm are known at sight; looking at a forward pass takes a second.
        done = operate(network)
        done = done if done.fused else operate(network, example_of(planned, small=True))
        kept = keep_freed_memory() if planned.device.type == "cpu" else None
        planned, engaged, seconds = settle_variant(planned, network)
        if kept is not None:
            engaged["kept host memory"] = kept
        engaged["surgery"] = Engaged(done.fused + done.biases > 0, str(done))
    return build_parts(planned, arena, network, clock, engaged=engaged, step_seconds=seconds)
