"""Whether a time limit is kept, and what of it is spent on training.

Each run is `hasten train DATA train.budget=MINmin` in a process of its own with an empty cache, timed from outside:
imports, preparation, measuring, training, validation and the report are inside. Beside the run, 0, 1 or 2 processes
take a core each. The share in steps includes the wait for batches. The Dice is that of the run's own validation cases,
by the plan's settings. Parts can be measured one by one (`--sets`, `--minutes`, `--loads`) and joined: `--merge` takes
the files that earlier calls wrote.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.busy_core import busy_core
from benchmarks.data import phantoms
from benchmarks.harness import ROOT, Claim, arguments, busy_machine, child_environment, finish

ABOUT = str(__doc__)
SETS = ("hippocampus", "membrane", "nuclei", "phantoms")
MINUTES = (1, 2, 5)
LOADS = (0, 1, 2)
QUIET = {1: 0.6, 2: 0.75, 5: 0.85}
BUSY = {1: 0.5, 2: 0.65, 5: 0.75}
"""Least share of the limit in steps, by minutes, without and with other processes."""
END = 0.97
"""Of the time asked for, what a run takes at least."""
SCAN = {"shape": (96, 256, 256), "spacing": (2.5, 1.0, 1.0)}
"""(D, H, W) of `hasten phantom`, and mm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    data: str
    minutes: float
    load: int
    """Processes that take a core meanwhile."""

    @property
    def name(self) -> str:
        return f"{self.data}, {self.minutes:g} min, {self.load} others"


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(
        ABOUT.splitlines()[0], argv,
        rounds={"type": int, "help": "default 5, quick 1"},
        sets={"nargs": "+", "choices": SETS, "default": None, "help": "default all; quick: phantoms"},
        minutes={"nargs": "+", "type": float, "default": None, "help": "default 1 2 5; quick 0.5"},
        loads={"nargs": "+", "type": int, "default": None, "help": "processes beside the run; default 0 1 2"},
        shared={"type": Path, "default": ROOT.parent / "shared" / "data", "help": "folder of the real data sets"},
        merge={"nargs": "+", "type": Path, "default": [], "help": "results of earlier calls to join; runs nothing"},
    )  # fmt: skip
    others = busy_machine()
    results = merged(given.merge) if given.merge else measured(given)
    finish(
        "time_limit", claims(results), results, given.out, given.quick, settings={"about": ABOUT}, others_before=others
    )


def measured(given: Namespace) -> dict[str, list[float]]:
    """The figures of each arm, by name and figure; rounds are interleaved."""
    results: dict[str, list[float]] = {}
    rounds = given.rounds or (1 if given.quick else 5)
    names = given.sets or (("phantoms",) if given.quick else SETS)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        sources = {name: given.shared / name for name in names if (given.shared / name).exists()}
        if given.data is not None and "hippocampus" in names:
            sources["hippocampus"] = given.data
        if "phantoms" in names:
            sources["phantoms"] = phantoms(scratch / "set", 16, SCAN)
        minutes = given.minutes or ((0.5,) if given.quick else MINUTES)
        loads = LOADS if given.loads is None else given.loads
        arms = [Arm(data=name, minutes=each, load=load) for name in sources for each in minutes for load in loads]
        for number in range(rounds):
            for arm in arms:
                figures = run(arm, sources[arm.data], scratch / f"run-{number}-{arms.index(arm)}")
                print(f"{number} {arm.name}: {figures}", file=sys.stderr)
                for name, value in figures.items():
                    results.setdefault(f"{arm.name}/{name}", []).append(value)
    return results


def merged(files: Sequence[Path]) -> dict[str, list[float]]:
    """The raw figures of several results files together."""
    results: dict[str, list[float]] = {}
    for file in files:
        for name, series in json.loads(file.read_text())["results"].items():
            results.setdefault(name, []).extend(series["raw"])
    return results


def claims(results: Mapping[str, Sequence[float]]) -> list[Claim]:
    """What is claimed of the arms that were run."""
    made: list[Claim] = []
    for series in results:
        name, _, figure = series.rpartition("/")
        if figure != "ended":
            continue
        minutes, load = float(name.split(", ")[1].split()[0]), int(name.split(", ")[2].split()[0])
        goal = (BUSY if load else QUIET).get(int(minutes)) if minutes == int(minutes) else None
        if goal is not None:
            share = statistics.median(results[f"{name}/in_steps"])
            made.append(Claim.at_least(f"{name}: median share of the limit spent in steps", share, goal))
        made.append(Claim.at_most(f"{name}: time taken over time asked, the most", max(results[series]), 1.0))
        made.append(Claim.at_least(f"{name}: time taken over time asked, the least", min(results[series]), END))
    return made


def run(arm: Arm, data: Path, scratch: Path) -> dict[str, float]:
    """The figures of `limited_run`, beside the processes of this arm."""
    with contextlib.ExitStack() as stack:
        for _ in range(arm.load):
            stack.enter_context(busy_core())
        return limited_run(data, 60 * arm.minutes, scratch)[0]


def limited_run(
    data: Path, seconds: float, scratch: Path, overrides: Sequence[str] = ()
) -> tuple[dict[str, float], dict[str, Any]]:
    """A training with so many seconds and an empty cache: its figures, and its summary, empty where nothing was
    trained.

    Seconds, their share of the limit, the share in steps, Dice, and steps. The run directory is `scratch`/run.
    """
    out = scratch / "run"
    command = [sys.executable, "-m", "hasten", "train", str(data), f"train.budget={seconds:g}s", "--quiet", *overrides]
    environment = {**child_environment(), "HASTEN_CACHE": str(scratch / "cache")}
    begin = time.perf_counter()
    code = subprocess.run([*command, "--out", str(out)], env=environment, stdout=subprocess.DEVNULL).returncode
    spent = time.perf_counter() - begin
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text()) if code == 0 else {}
    spans, best = summary.get("seconds", {}), summary.get("best", {}).get("value")
    return {
        "s": spent,
        "ended": spent / seconds,
        "in_steps": (spans.get("train", 0.0) + spans.get("wait_for_data", 0.0)) / seconds,
        "dice": best if best is not None else math.nan,
        "steps": float(summary.get("steps", 0)),
    }, summary


if __name__ == "__main__":
    main()
