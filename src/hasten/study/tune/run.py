"""`tune`: a measured search for the fastest way to do a run on this machine, and its result in a folder."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hasten
from hasten.cache.key import cache_dir, digest
from hasten.config.load import with_absolute_paths
from hasten.config.schema import RunConfig
from hasten.engine.allocator import keep_freed_memory
from hasten.engine.measure import machine
from hasten.engine.outputs import make_folder
from hasten.engine.run_plan import RunPlan, plan_run
from hasten.observe.cores import usable_cores
from hasten.observe.cpu_load import LoadMeter
from hasten.study.folder import empty_folder
from hasten.study.tune.arm_builder import ArmBuilder
from hasten.study.tune.arm_timer import ArmTimer
from hasten.study.tune.records import Tuned, write_tuned
from hasten.study.tune.search import Rules, Searched, SearchRow, search
from hasten.study.tune.setting import apply_changes, changes_between
from hasten.study.tune.space import advice, fit_memory, pays_within, room_of, space_of, start_of
from hasten.study.tune.stored import StoredMeasurements

_RULES = 1
"""Increased when the measurements or the rules for arms change, so that older results aren't used."""


def tune(
    config: RunConfig,
    out: Path,
    *,
    seconds: float = 300.0,
    fresh: bool = False,
    larger_batch: bool = False,
    echo: Callable[[str], object] | None = None,
    meter: LoadMeter | None = None,
) -> Tuned:
    """Search for settings that make the run of `config` faster, and write tuned.yaml, tune.json and tune.html to `out`.

    seconds: for everything, filling the cache with the prepared cases included; a comparison that was begun is ended.
    fresh: measure again what an earlier search of this machine, network and shape has measured. larger_batch: take
    another batch size too, which changes the training. echo: called with a
    line before each comparison. What was not clearly faster, with the loss and gradient norm of the run as it is, is
    not taken: tuned.yaml is then the run as it was given. Raises ValueError for bad input and for a run that does not
    run as it is, before anything is written.
    """
    begin = time.monotonic()
    if not 0 < seconds < math.inf:
        raise ValueError(f"--seconds {seconds:g}: give a number above 0")
    created = make_folder(empty_folder(Path(out)))
    try:
        tuned = _tuned(
            with_absolute_paths(config), Path(out), begin + seconds, fresh, larger_batch,
            echo or (lambda text: None), meter,
        )  # fmt: skip
        tuned = dataclasses.replace(tuned, seconds=time.monotonic() - begin, budget=seconds)
        write_tuned(tuned)
    except BaseException:
        if created and not any(Path(out).iterdir()):
            Path(out).rmdir()
        raise
    return tuned


def _tuned(
    config: RunConfig,
    out: Path,
    end: float,
    fresh: bool,
    larger_batch: bool,
    echo: Callable[[str], object],
    meter: LoadMeter | None,
) -> Tuned:
    planned = plan_run(config)
    if planned.device.type == "cpu":
        keep_freed_memory()  # as a run does
    builder, start = ArmBuilder(planned), start_of(planned)
    echo("prepared cases")
    builder.arena(str(start["home"]))
    about = _about(planned, builder)
    store = StoredMeasurements.open(cache_dir(planned.config.cache) / "measured", about, fresh=fresh)
    room = room_of(builder, start, store)
    base, memory = fit_memory(start, room)
    timer = ArmTimer(builder, base, meter=meter)
    remaining = max(0.0, end - time.monotonic())
    # Even estimating the cost of a comparison takes a step: with no time left, nothing is estimated.
    rules = Rules(
        cost=store.cost(timer.cost if remaining > 0 else lambda kind, base, arms: math.inf),
        ceiling=store.ceiling(timer.ceiling),
        pays=pays_within(planned.config.train.steps),
        tell=echo,
    )
    space = space_of(planned, base, room, larger_batch=larger_batch)
    searched = search(space, store.measure(timer.measure), seconds=remaining, rules=rules)
    decided = searched.decided | ({"activations"} if memory else set())
    tuned = apply_changes(config, planned.config, start, searched.best, decided)
    rows = searched.rows if memory is None else (memory, *searched.rows)
    return Tuned(
        config=tuned,
        out=out,
        changes=changes_between(config, tuned),
        rows=rows,
        gain=searched.gain,
        suggestions=_suggestions(rows),
        notes=_notes(searched, store),
        about=about,
        busy=searched.busy,
    )


def _suggestions(rows: tuple[SearchRow, ...]) -> tuple[str, ...]:
    """Suggestions for winners that can't be, or are not, taken automatically."""
    not_taken = (row for row in rows if row.verdict == "won" and not row.taken and not row.superseded)
    return tuple(
        f"{row.stage} gained {row.measured.gain:.2f} times: {row.why or advice(row.changes)}"
        for row in not_taken
        if row.measured is not None and row.measured.gain is not None
    )


def _notes(searched: Searched, store: StoredMeasurements) -> tuple[str, ...]:
    notes = []
    if searched.busy:
        notes.append(
            "Other programs took this machine meanwhile, so that only large gains and losses were concluded; "
            "end them and tune again."
        )
    if searched.short:
        untried = sum(row.verdict == "not tried" for row in searched.rows)
        notes.append(
            f"The time did not suffice: {untried} of {len(searched.rows)} comparisons were not made. Give more "
            "--seconds; what was measured now is not measured again."
        )
    if any(row.verdict == "unclear" for row in searched.rows) and not searched.busy:
        notes.append("Some comparisons stayed unclear, as their runs spread too much; nothing was taken from them.")
    if store.answered:
        asked = store.answered + store.asked
        notes.append(f"{store.answered} of {asked} comparisons were known from an earlier search.")
    return tuple(notes)


def _about(planned: RunPlan, builder: ArmBuilder) -> dict[str, Any]:
    """What a comparison depends on, besides the settings that it compares."""
    config = planned.config
    fields = ("optimizer", "momentum", "lookahead", "clip_norm", "accumulate", "ema", "fp32_layers")
    name, torch_version, threads = machine(planned.device)
    arena = builder.arena(config.cache.home)
    return {
        "rules": [_RULES, hasten.__version__],
        "machine": name,
        "torch": torch_version,
        "threads": threads,
        "cores": usable_cores(),
        "device": str(planned.device),
        "network": dataclasses.asdict(config.network),
        "loss": dataclasses.asdict(config.loss),
        "sample": dataclasses.asdict(config.sample) | {"compile": None, "batch_size": None},
        "infer": dataclasses.asdict(config.infer) | {"batch_size": None, "sums": None},
        "train": {field: getattr(config.train, field) for field in fields},
        "channels": len(planned.case_set.channels),
        "classes": len(planned.case_set.labels),
        "regions": planned.members,
        "spatial_dims": planned.case_set.spatial_dims,
        "cases": [len(planned.train), len(planned.validation), config.prepare.dtype, digest(arena.shapes)],
    }
