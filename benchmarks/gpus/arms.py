"""Whole trainings as processes of their own, with every import in their clock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpus.sheet import Sheet
from benchmarks.harness import ROOT
from benchmarks.ladder.outcome import Time, time_to
from benchmarks.ladder.task import Task, peer_of, task_of
from hasten.doctor.script.launch import end_all
from hasten.observe.cores import usable_cores
from hasten.recipes.load import load_recipe
from hasten.recipes.run import run_of, twin_of, write_twin

Run = dict[str, Any]
SPARE = 4.0
"""Seconds kept free after an arm, for the ending of a run that overstays."""


def twin_task(name: str, folder: Path, *, quick: dict[str, Any] | None = None, **changes: Any) -> tuple[Task, Path]:
    """The task of a recipe on phantoms that are written into `folder`; and where these are.

    changes: fields of the twin that differ from the recipe's. quick: fields of the twin, besides `peer` and
    `validation_last` of the recipe, for a rehearsal.
    """
    recipe = load_recipe(name)
    if quick is not None:
        recipe = replace(recipe, validation_last=quick.pop("validation_last"))
        changes |= quick
    twin = replace(twin_of(recipe), **changes)
    data = folder / "data"
    write_twin(recipe, twin, data, num_threads=usable_cores())
    config = run_of(recipe, [f"data.source={data}"], twin=twin)
    return task_of(config, peer_of(twin.peer or recipe.peer), name=name), data


def run_arm(sheet: Sheet, what: str, module: str, flags: Sequence[str], out: Path, *, seconds: float) -> Run:
    """Run `python -m MODULE FLAGS --out OUT`, at most so many seconds; what it had written to `out` by then.

    An arm that failed, or was ended before it had written anything, is told on the sheet.
    """
    log = out.with_suffix(".log")
    with log.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-m", module, *flags, "--out", str(out)], cwd=ROOT, stdout=file,
                                 stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        try:
            code: int | None = child.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_all(child)
    result: Run = json.loads(out.read_text()) if out.is_file() else {}
    if code is None and result:
        result["stopped"] = "max_seconds"
    elif code != 0:
        sheet.skip(what, f"no validation in {seconds:.0f} s" if code is None else f"exit {code}: {_tail(log)}")
    return result


def _tail(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])[-500:]


def series_of(name: str, runs: Sequence[Run], level: float) -> dict[str, list[float]]:
    """Seconds to a level, those of runs that were stopped before it apart; whole runs; the best value of each."""
    times: list[Time] = [time_to(run, level) for run in runs]
    results = {
        f"{name}, to {level}_s": [time.seconds for time in times if time.reached],
        f"{name}, to {level}, at least_s": [time.seconds for time in times if not time.reached],
        f"{name}, whole run_s": [run["seconds"]["total"] for run in runs],
        f"{name}, best": [run["best"] for run in runs if run["best"] is not None],
        f"{name}, epoch_s": [sum(run["seconds_per_epoch"]) / len(run["seconds_per_epoch"])
                             for run in runs if run["seconds_per_epoch"]],
    }  # fmt: skip
    return {series: values for series, values in results.items() if values}


def fits(sheet: Sheet, runs: dict[str, list[Run]]) -> bool:
    """Whether every arm can be run once more, by what the longest run of each took."""
    longest = [max(run["seconds"]["total"] for run in result) for result in runs.values() if result]
    return sheet.left() > 1.1 * sum(longest) + SPARE
