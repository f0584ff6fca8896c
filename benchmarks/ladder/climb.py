"""Runs of the rungs, each in a process of its own, seed by seed; what has run is kept and not repeated."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import child_environment
from benchmarks.ladder.rungs import Rung
from benchmarks.ladder.task import Task, write_task
from hasten.cache.key import digest
from hasten.doctor.script.launch import end_all
from hasten.observe.rundir import write_json

Result = dict[str, Any]
GRACE = 1.5
"""A process is ended from outside after this many times its cap: a last epoch and validation may take that long."""
_START = 120.0
"""And this many seconds, for its start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """How a rung is to be run."""

    rung: Rung
    target: float
    cap: float
    """Seconds from process start after which a run is stopped."""
    seeds: int = 3
    device: str = "auto"


def check_installed(rungs: Sequence[Rung]) -> None:
    """Raise ValueError for a peer whose package is not there, before anything is run."""
    for rung in rungs:
        if rung.needs and importlib.util.find_spec(rung.needs) is None:
            raise ValueError(f"--peer {rung.name}: needs {rung.needs}; pip install 'hasten[peers]'")


def climb(
    task: Task, wanted: Sequence[Attempt], work: Path, *, tell: Callable[[str], None] = print
) -> dict[str, list[Result]]:
    """Run every attempt for each of its seeds, one seed of all before the next, and give the results by rung.

    work: folder in which results stay; a run that is there for the same task, rung and flags, and has ended, is not
    repeated. tell: gets one line when a run begins and one when it has ended. Raises ValueError where a run fails.
    """
    results: dict[str, list[Result]] = {attempt.rung.name: [] for attempt in wanted}
    for seed in range(max((attempt.seeds for attempt in wanted), default=0)):
        for attempt in wanted:
            if seed < attempt.seeds:
                results[attempt.rung.name].append(run_one(task, attempt, seed, work, tell))
    return results


def run_one(task: Task, attempt: Attempt, seed: int, work: Path, tell: Callable[[str], None] = print) -> Result:
    """The result of one run, from `work` if it ended there; otherwise as `climb`."""
    work.mkdir(parents=True, exist_ok=True)
    path = write_task(work / f"task_{digest(dataclasses.asdict(task))}.json", task)
    rung = attempt.rung
    flags, out = _flags(attempt, seed), result_path(task, attempt, seed, work)
    who = f"{rung.label}, seed {seed}"
    if has_ended(out):
        tell(f"{who}: kept from before")
        return _read(out)
    tell(f"{who}: to {attempt.target:g}, at most {attempt.cap:.0f} s")
    out.unlink(missing_ok=True)
    module = f"benchmarks.ladder.arms.{rung.module}"
    command = [sys.executable, "-m", module, "--task", str(path), "--out", str(out), *flags]
    log = out.with_suffix(".log")
    limit = GRACE * attempt.cap + _START
    code = _run(command, log, limit)
    if code is None and out.is_file():
        # What it had validated by then stands: it tried for its whole time.
        write_json(out, _read(out) | {"stopped": "max_seconds"})
    elif code != 0:
        why = f"did not begin within {limit:.0f} s" if code is None else _last_line(log)
        raise ValueError(f"{who} failed: {why} (its messages are in {log})")
    tell(f"{who}: {said_of(_read(out))}")
    return _read(out)


def _run(command: Sequence[str], log: Path, limit: float) -> int | None:
    """Exit code of the command, whose output goes into `log`; None where it had to be ended."""
    with log.open("wb") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True, env=child_environment()
        )
        try:
            return child.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Also on Ctrl-C, and for what a loader's processes or a peer's own left behind.
            end_all(child)


def result_path(task: Task, attempt: Attempt, seed: int, work: Path) -> Path:
    """Where a run's result is kept: named by the rung, the seed, the flags, and what the rung sees of the task."""
    seen = dataclasses.asdict(task)
    if attempt.rung.module != "hasten":
        del seen["run"], seen["schedule"]  # a change of Hasten's own settings is none for the others
    key = digest([seen, attempt.rung.module, _flags(attempt, seed)])
    return work / f"{attempt.rung.name}_{seed}_{key}.json"


def _flags(attempt: Attempt, seed: int) -> list[str]:
    return ["--seed", str(seed), "--target", f"{attempt.target:g}", "--max-seconds", f"{attempt.cap:g}",
            "--device", attempt.device, *attempt.rung.flags]  # fmt: skip


def said_of(result: Result) -> str:
    """One run in a line."""
    curve, metric = result["curve"], result["settings"]["metric"]
    if not curve:
        return f"stopped ({result['stopped']}) before a validation"
    last = curve[-1]
    best = "none" if result["best"] is None else f"{result['best']:.3f}"
    return f"{result['stopped']} after {last['seconds']:.1f} s, {result['steps']} steps, best {metric} {best}"


def has_ended(out: Path) -> bool:
    """Whether a result file is there and its run came to an end."""
    try:
        return _read(out)["stopped"] is not None
    except (OSError, ValueError, KeyError):
        return False


def _read(out: Path) -> Result:
    content: Result = json.loads(out.read_text())
    return content


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip().removeprefix("ValueError: ") if lines else "it said nothing"
