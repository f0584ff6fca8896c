"""`tune`: a measured search for the fastest way to do a run on this machine, and its result in a folder."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hasten
from hasten.config.load import dump_run, with_absolute_paths
from hasten.config.schema import RunConfig
from hasten.doctor.finding import ms
from hasten.doctor.training import keep_freed_memory, machine, make_folder, plan_run
from hasten.doctor.tune.arms import Arms
from hasten.doctor.tune.search import ArmResult, Searched, SearchRow, changes_text, search, value_text
from hasten.doctor.tune.space import apply_changes, changes_between, pays_within, stages_of, start_of
from hasten.observe.cores import usable_cores
from hasten.observe.cpu_load import LoadMeter
from hasten.observe.folder import empty_folder, writing_to
from hasten.observe.rundir import write_json, write_text
from hasten.report.model import Table

TUNED_YAML, TUNE_JSON = "tuned.yaml", "tune.json"
_SEEMS = 1.03
"""Gain from which an unclear comparison is reported as promising."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuned:
    """The result of a search."""

    config: RunConfig
    """The run as in tuned.yaml."""
    out: Path
    changes: dict[str, tuple[Any, Any]]
    """Fields of the run's YAML that are not as they were, before and after; none if nothing was clearly faster."""
    searched: Searched
    about: dict[str, Any]
    """The machine that it holds for."""
    seconds: float = 0.0
    budget: float = 0.0

    @property
    def rows(self) -> tuple[SearchRow, ...]:
        """Everything that was tried, or not, in order."""
        return self.searched.rows

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.searched.gain is not None:
            return f"The run is {_gain_text(self.searched.gain)} times as fast as it was."
        if self.searched.busy and not self.changes:
            busy = "No conclusion: this machine was busy with other programs, and the run stays as it was given."
            return f"{busy}{self._promising()}"
        better = [row for row in self.rows if row.taken]
        if better:
            return f"The steps stay as they are; {', '.join(changes_text(row.changes) for row in better)} was better."
        if not any(row.measured for row in self.rows):
            return "Nothing could be measured; tuned.yaml is the run as it was given."
        return f"Nothing was clearly faster than the run as it is.{self._promising()}"

    def _promising(self) -> str:
        """What gained most of what stayed unclear: a partial answer; empty where nothing seemed to gain."""
        unclear = [(row, row.measured) for row in self.rows if row.measured is not None and row.verdict == "unclear"]
        row, best = max(unclear, key=lambda pair: pair[1].gain or 0.0, default=(None, None))
        if row is None or best is None or (best.gain or 0.0) <= _SEEMS:
            return ""
        return f" Most promising, and not proven: {changes_text(row.changes)}, {_gain_text(best)} times as fast."

    @property
    def notes(self) -> tuple[str, ...]:
        """Caveats."""
        notes = []
        if self.searched.busy:
            notes.append(
                "Other programs took this machine meanwhile, so that only large gains and losses were concluded; "
                "end them and tune again."
            )
        if self.searched.untried:
            notes.append(
                f"The time did not suffice: {self.searched.untried} of {len(self.rows)} comparisons were not made. "
                "Give more --seconds."
            )
        if any(row.verdict == "unclear" for row in self.rows) and not self.searched.busy:
            notes.append("Some comparisons stayed unclear, as their runs spread too much; nothing was taken from them.")
        return tuple(notes)

    def lines(self) -> list[str]:
        """Lines for a terminal: the verdict, what changed, and the notes."""
        changes = (f"  {name}: {value_text(old)} -> {value_text(new)}" for name, (old, new) in self.changes.items())
        return [self.verdict, *changes, *(f"note: {text}" for text in self.notes)]

    def table(self) -> Table:
        """Everything that was tried, each line against the best setting before it."""
        columns = ("tried", "time", "of the base", "gain", "verdict", "remark")
        return Table(columns, tuple(map(_texts, self.rows)), numeric=(1, 2, 3))


def _gain_text(measured: ArmResult) -> str:
    interval = "" if measured.low is None or measured.high is None else f" ({measured.low:.2f} to {measured.high:.2f})"
    return f"{measured.gain or 1.0:.2f}{interval}"


def _texts(row: SearchRow) -> tuple[str, ...]:
    measured, verdict = row.measured, f"{row.verdict}, taken" if row.taken else row.verdict
    if measured is None:
        return changes_text(row.changes), "", "", "", verdict, row.why
    gain = "" if measured.gain is None else _gain_text(measured)
    times = ("" if seconds is None else ms(seconds) for seconds in (measured.seconds, measured.base_seconds))
    remark = "; ".join(dict.fromkeys(text for text in (row.why, measured.agreement) if text))
    return changes_text(row.changes), *times, gain, verdict, remark


def tune(
    config: RunConfig,
    out: Path,
    *,
    seconds: float = 300.0,
    echo: Callable[[str], object] | None = None,
    meter: LoadMeter | None = None,
) -> Tuned:
    """Search for settings that make the run of `config` faster, and write tuned.yaml and tune.json to `out`.

    seconds: for everything, filling the cache with the prepared cases included; a comparison that was begun is ended.
    echo: called with a line before each comparison. What was not clearly faster, with the loss and gradient norm of the
    run as it is, is not taken: tuned.yaml is then the run as it was given. Raises ValueError for bad input and for a
    run that does not run as it is, before anything is written.
    """
    begin = time.monotonic()
    if not 0 < seconds < math.inf:
        raise ValueError(f"--seconds {seconds:g}: give a number above 0")
    created = make_folder(empty_folder(Path(out)))
    try:
        tell = echo or (lambda text: None)
        tuned = _tuned(with_absolute_paths(config), Path(out), begin + seconds, tell, meter)
        tuned = replace(tuned, seconds=time.monotonic() - begin, budget=seconds)
        _write(tuned)
    except BaseException:
        if created and not any(Path(out).iterdir()):
            Path(out).rmdir()
        raise
    return tuned


def _tuned(config: RunConfig, out: Path, end: float, tell: Callable[[str], object], meter: LoadMeter | None) -> Tuned:
    planned = plan_run(config)
    if planned.device.type == "cpu":
        keep_freed_memory()  # as a run does
    start = start_of(planned)
    arms = Arms(planned, start, meter=meter)
    tell("prepared cases")
    stages = stages_of(planned, start, arms.homes())
    refuse = pays_within(planned.config.train.steps)
    searched = search(start, stages, arms.measure, seconds=end - time.monotonic(), refuse=refuse, tell=tell)
    tuned = apply_changes(config, start, searched.best, searched.decided)
    name, torch_version, threads = machine(planned.device)
    return Tuned(
        config=tuned,
        out=out,
        changes=changes_between(config, tuned),
        searched=searched,
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
    )


def _write(tuned: Tuned) -> None:
    rows = [
        {
            "stage": row.stage,
            "timed": row.kind,
            "setting": row.changes,
            "base": dict(row.base.values),
            **{name: getattr(row, name) for name in ("verdict", "taken", "why", "measured")},
        }
        for row in tuned.rows
    ]
    content = {name: getattr(tuned, name) for name in ("verdict", "seconds", "budget", "notes", "about")}
    content |= {"busy": tuned.searched.busy, "gain": tuned.searched.gain, "rows": rows}
    content["changes"] = [{"field": name, "before": old, "after": new} for name, (old, new) in tuned.changes.items()]
    with writing_to(tuned.out):
        write_text(tuned.out / TUNED_YAML, dump_run(tuned.config))
        write_json(tuned.out / TUNE_JSON, content)
