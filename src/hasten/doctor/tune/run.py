"""`tune`: a measured search for the fastest way to do a run on this machine, and its result in a folder."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path

import hasten
from hasten.config.load import with_absolute_paths
from hasten.config.schema import RunConfig
from hasten.doctor.training import keep_freed_memory, machine, make_folder, plan_run
from hasten.doctor.tune.arms import Arms
from hasten.doctor.tune.page import Tuned, write_tuned
from hasten.doctor.tune.search import Searched, SearchRow, changes_text, search
from hasten.doctor.tune.space import apply_changes, changes_between, pays_within, stages_of, start_of
from hasten.observe.cores import usable_cores
from hasten.observe.cpu_load import LoadMeter
from hasten.observe.folder import empty_folder


def tune(
    config: RunConfig,
    out: Path,
    *,
    seconds: float = 300.0,
    larger_batch: bool = False,
    echo: Callable[[str], object] | None = None,
    meter: LoadMeter | None = None,
) -> Tuned:
    """Search for settings that make the run of `config` faster, and write tuned.yaml, tune.json and tune.html to `out`.

    seconds: for everything, filling the cache with the prepared cases included; a comparison that was begun is ended.
    larger_batch: take another batch size too, which changes the training. echo: called with a line before each
    comparison. What was not clearly faster, with the loss and gradient norm of the run as it is, is not taken:
    tuned.yaml is then the run as it was given. Raises ValueError for bad input and for a run that does not run as it
    is, before anything is written.
    """
    begin = time.monotonic()
    if not 0 < seconds < math.inf:
        raise ValueError(f"--seconds {seconds:g}: give a number above 0")
    created = make_folder(empty_folder(Path(out)))
    try:
        tell = echo or (lambda text: None)
        tuned = _tuned(with_absolute_paths(config), Path(out), begin + seconds, larger_batch, tell, meter)
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
    larger_batch: bool,
    tell: Callable[[str], object],
    meter: LoadMeter | None,
) -> Tuned:
    planned = plan_run(config)
    if planned.device.type == "cpu":
        keep_freed_memory()  # as a run does
    start = start_of(planned)
    arms = Arms(planned, start, meter=meter)
    tell("prepared cases")
    stages = stages_of(planned, start, arms.homes(), arms.fits, larger_batch=larger_batch)
    searched = search(
        start,
        stages,
        arms.measure,
        seconds=end - time.monotonic(),
        refuse=pays_within(planned.config.train.steps),
        tell=tell,
    )
    tuned = apply_changes(config, planned.config, start, searched.best, searched.decided)
    name, torch_version, threads = machine(planned.device)
    return Tuned(
        config=tuned,
        out=out,
        changes=changes_between(config, tuned),
        rows=searched.rows,
        gain=searched.gain,
        suggestions=_suggestions(searched.rows),
        notes=_notes(searched),
        about={
            "machine": name,
            "device": str(planned.device),
            "cores": usable_cores(),
            "threads": threads,
            "torch": torch_version,
            "hasten": hasten.__version__,
            "network": planned.config.network.name,
            "patch": planned.config.sample.patch,
        },
        busy=searched.busy,
    )


def _suggestions(rows: tuple[SearchRow, ...]) -> tuple[str, ...]:
    """Winners that are only reported, and why."""
    larger = "it means fewer steps, so that the result may be another; --larger-batch takes it: compare the Dice"
    return tuple(
        f"{changes_text(row.changes)} gained {row.measured.gain or 1.0:.2f} times: {row.why or larger}"
        for row in rows
        if row.advised and row.measured is not None
    )


def _notes(searched: Searched) -> tuple[str, ...]:
    notes = []
    if searched.busy:
        notes.append(
            "Other programs took this machine meanwhile, so that only large gains and losses were concluded; "
            "end them and tune again."
        )
    if searched.untried:
        notes.append(
            f"The time did not suffice: {searched.untried} of {len(searched.rows)} comparisons were not made. Give "
            "more --seconds."
        )
    if any(row.verdict == "unclear" for row in searched.rows) and not searched.busy:
        notes.append("Some comparisons stayed unclear, as their runs spread too much; nothing was taken from them.")
    return tuple(notes)
