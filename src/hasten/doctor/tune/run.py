"""`tune`: a measured search for the fastest way to do a run on this machine, and its result in a folder."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hasten
from hasten.config.load import dump_run, from_dict, to_dict, with_absolute_paths
from hasten.config.schema import RunConfig
from hasten.doctor.finding import ms
from hasten.doctor.training import WINDOW_BATCH, RunPlan, keep_freed_memory, machine, make_folder, plan_run
from hasten.doctor.tune.arms import Arms
from hasten.doctor.tune.search import (
    ArmResult,
    Changes,
    Searched,
    SearchRow,
    Setting,
    Stage,
    changes_text,
    search,
    value_text,
)
from hasten.observe.cores import usable_cores
from hasten.observe.cpu_load import LoadMeter
from hasten.observe.rundir import empty_folder, write_json, write_text, writing_to
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
    stages = stages_of(planned, start)
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


def start_of(planned: RunPlan) -> Setting:
    """The run as configured; what that leaves to be measured is float32, contiguous and not compiled."""
    config = planned.config
    train, sample = config.train, config.sample
    return Setting.of(
        {
            "train.precision": train.precision or "fp32",
            "train.channels_last": bool(train.channels_last),
            "train.compile": bool(train.compile),
            "train.capture": bool(train.capture),
            "sample.compile": bool(sample.compile),
            "infer.batch_size": config.infer.batch_size or WINDOW_BATCH,
        }
    )


def stages_of(planned: RunPlan, start: Setting) -> list[Stage]:
    """Stages from what matters most."""
    cuda = planned.device.type == "cuda"
    precisions = ("fp32", "tf32", "bf16", "fp16") if cuda else ("fp32", "bf16")
    grid: tuple[Changes, ...] = tuple(
        {"train.precision": precision, "train.channels_last": last, "train.compile": False}
        for precision, last in itertools.product(precisions, (False, True))
    )
    # Compiling may favour the other memory format than the one that is faster without.
    compiled: tuple[Changes, ...] = (
        {"train.compile": True},
        *({"train.compile": True, "train.channels_last": last} for last in (False, True)),
    )
    graph: tuple[Changes, ...] = ({"train.capture": True}, {"train.capture": False})
    windows = int(start["infer.batch_size"])
    sizes = dict.fromkeys((max(1, windows // 2), 2 * windows, 4 * windows))
    return [
        Stage(name="precision and memory format", changes=grid, weight=4.0),
        Stage(name="compiling", changes=compiled, weight=2.0),
        Stage(name="batch program", changes=({"sample.compile": not start["sample.compile"]},)),
        *([Stage(name="CUDA graph", changes=graph)] if cuda else []),
        Stage(name="sliding window", kind="validate", changes=tuple({"infer.batch_size": each} for each in sizes)),
    ]


def pays_within(steps: int) -> Callable[[Setting, ArmResult], str]:
    """Compare what compiling saves over a run of `steps` steps with its one-time cost: the reason against it, or ""."""

    def against(arm: Setting, measured: ArmResult) -> str:
        if not measured.once or measured.seconds is None or measured.base_seconds is None:
            return ""
        saved_s = steps * (measured.base_seconds - measured.seconds)
        # `hasten train` compiles twice: a copy to check its numbers, then the network itself.
        cost_s = 2 * measured.once
        if saved_s > cost_s:
            return ""
        return f"{steps} steps would save {saved_s:.0f} s, and compiling costs a run about {cost_s:.0f} s"

    return against


def apply_changes(config: RunConfig, start: Setting, best: Setting, decided: Iterable[str]) -> RunConfig:
    """`config` with what `best` changes, and with fields that it leaves open where the search decided about them."""
    tree = to_dict(config)
    changed = best.apart(start)
    for name in {*changed, *decided}:
        section, _, key = name.partition(".")
        if name in changed or tree[section][key] is None:
            tree[section][key] = best[name]
    return from_dict(tree, where="the tuned run")


def changes_between(before: RunConfig, after: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Fields that are not as they were: value before and after."""
    old, new = to_dict(before), to_dict(after)
    return {
        f"{section}.{field}": (old[section][field], value)
        for section, content in new.items()
        for field, value in content.items()
        if value != old[section][field]
    }
