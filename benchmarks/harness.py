"""What every benchmark shares: arguments, interleaved timing, the results file and the line of claims.

The last line that a benchmark writes to stdout is one JSON object, {"bench": NAME, "claims": [{"name", "value",
"goal", "holds"}, ...]}, so that a program can read the outcome.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import hardware, versions
from hasten.observe.cpu_load import BUSY, other_cores

ROOT = Path(__file__).resolve().parents[1]


def child_environment() -> dict[str, str]:
    """Of a child that runs a module of `benchmarks` from whatever directory this process works in."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


def in_child(module: str, *words: object, env: Mapping[str, str] | None = None) -> Any:
    """Run a module in a process of its own; the JSON that it prints last. Raises RuntimeError with what it said."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, words)],
        cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{module} {' '.join(map(str, words))} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _load_average() -> list[float] | None:
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


LOAD_BEFORE = _load_average()
"""Taken at import, before the benchmark itself loads the machine."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence that a benchmark puts to the test."""

    name: str
    value: float | None
    """None where an arm was not run, so that nothing is claimed."""
    goal: str
    """In words that a reader can check against `value`, such as ">= 2"."""
    holds: bool

    @classmethod
    def at_least(cls, name: str, value: float | None, goal: float) -> Claim:
        return cls(name, _figure(value), f">= {goal:g}", value is not None and value >= goal)

    @classmethod
    def at_most(cls, name: str, value: float | None, goal: float) -> Claim:
        return cls(name, _figure(value), f"<= {goal:g}", value is not None and value <= goal)


def _figure(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def arguments(description: str, argv: Sequence[str] | None = None, **extra: dict[str, Any]) -> argparse.Namespace:
    """Parse the flags that all benchmarks take.

    `extra` maps the name of a further flag to the keywords of `add_argument`: `rounds={"type": int}` adds `--rounds`.
    `data` is None where no folder is given and the default one does not exist; the benchmark then writes phantoms.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="few rounds and cases: a smoke test, not a measurement")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder for the results file")
    default = ROOT.parent / "shared" / "data" / "hippocampus"
    parser.add_argument("--data", type=Path, default=default if default.exists() else None,
                        help="Decathlon folder of Task04 Hippocampus (without it phantoms are written)")  # fmt: skip
    for name, keywords in extra.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **keywords)
    given = parser.parse_args(argv)
    # An installed package has its bytecode; a checkout must write it, or each process compiles every module.
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""
    if given.data is not None and not (given.data / "dataset.json").is_file():
        parser.error(f"--data {given.data}: no dataset.json there; give the folder that holds it")
    return given


Part = tuple[list[Claim], dict[str, list[float]], Any]
"""What one part of a benchmark gives: its claims, series by name, and what else is to be kept of it."""


def part_arguments(parts: Mapping[str, Callable[[argparse.Namespace], Part]]) -> dict[str, Any]:
    """The flag `--parts`, for `arguments`."""
    return {"nargs": "+", "choices": tuple(parts), "default": list(parts)}


def run_parts(
    bench: str, parts: Mapping[str, Callable[[argparse.Namespace], Part]], given: argparse.Namespace, about: str | None
) -> None:
    """Run the parts in `given.parts` one after another and write their results as one file."""
    others = busy_machine()
    claims: list[Claim] = []
    results: dict[str, list[float]] = {}
    settings: dict[str, Any] = {"about": about}
    for name in given.parts:
        print(f"{name} ...", file=sys.stderr)
        part_claims, part_results, message = parts[name](given)
        claims += part_claims
        results |= {f"{name}/{series}": values for series, values in part_results.items()}
        settings[name] = message
    label = bench if given.parts == list(parts) else "_".join([bench, *given.parts])
    finish(label, claims, results, given.out, given.quick, settings=settings, others_before=others)


def busy_machine(seconds: float = 1.0) -> float:
    """Cores used by other programs over `seconds`; warns on stderr above 0.3, since timings then say little."""
    others = other_cores(seconds)
    if others > BUSY:
        print(f"busy machine: other programs use {others:.1f} cores; timings are doubtful", file=sys.stderr)
    return others


def interleave(arms: Mapping[str, Callable[[], float | None]], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Run the arms A/B/A/B, `warmup` rounds unrecorded, and give each arm's figures in order.

    An arm that returns a number is recorded by that number, such as the seconds that a child process measured; of any
    other arm the elapsed seconds are. Taking turns spreads a slow spell of the machine over all arms.
    """
    figures: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(warmup + rounds):
        for name, arm in arms.items():
            start = time.perf_counter()
            value = arm()
            elapsed = time.perf_counter() - start
            if turn >= warmup:
                figures[name].append(elapsed if value is None else float(value))
    return figures


def spread(values: Sequence[float]) -> dict[str, Any]:
    """n, median, smallest, largest, interquartile range and the raw numbers of one series."""
    if not values:
        return {"n": 0, "raw": []}
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {
        "n": len(values),
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "iqr": quartiles[2] - quartiles[0],
        "raw": list(values),
    }


def median_ratio(numerator: Sequence[float] | None, denominator: Sequence[float] | None) -> float | None:
    """Ratio of the medians; None where either series is missing."""
    if not numerator or not denominator:
        return None
    return statistics.median(numerator) / statistics.median(denominator)


def commit() -> str | None:
    """Short hash of the checked-out commit, with `+` if tracked files differ from it; None outside a repository."""
    try:
        head = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True)
        changed = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return None
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "") if head.returncode == 0 else None


def finish(
    bench: str,
    claims: Sequence[Claim],
    results: Mapping[str, Sequence[float]],
    out: Path,
    quick: bool,
    *,
    settings: Mapping[str, Any] | None = None,
    others_before: float | None = None,
) -> Path:
    """Print the table, write the results file and, as the last line of stdout, the claims.

    `results` maps a series, its unit in the name ("monai_fill_s"), to its raw numbers; `settings` is whatever else the
    reader needs to repeat the run; `others_before` is what `busy_machine` said before the first timing.
    Returns the path of the file. A quick run has `_quick` in its name, so that it never replaces a full one.
    """
    record = record_of(bench, claims, results, quick, settings=settings, others_before=others_before)
    path = out / file_name(record)
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    _print_tables(bench, claims, results, path)
    print(json.dumps({"bench": bench, "claims": record["claims"]}), flush=True)
    return path


def record_of(
    bench: str,
    claims: Sequence[Claim],
    results: Mapping[str, Sequence[float]],
    quick: bool,
    *,
    settings: Mapping[str, Any] | None = None,
    others_before: float | None = None,
) -> dict[str, Any]:
    """What a results file holds; the arguments are those of `finish`."""
    return {
        "bench": bench,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "hardware": hardware(),
        "cores_used_by_others": {"before": others_before, "after": busy_machine()},
        "load_average": {"before": LOAD_BEFORE, "after": _load_average()},
        "versions": versions(),
        "commit": commit(),
        "settings": plain(settings or {}),
        "results": {name: spread(values) for name, values in results.items()},
        "claims": [asdict(claim) for claim in claims],
    }


def file_name(record: Mapping[str, Any]) -> str:
    """Of a record's file: benchmark, machine, day."""
    machine = record["hardware"]["card"] or record["hardware"]["cpu"]
    name = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    return f"{record['bench']}_{name}_{record['date'][:10]}{'_quick' if record['quick'] else ''}.json"


def plain(value: Any) -> Any:
    """Ready for JSON; of a path only the name, since where things lay on this machine helps nobody."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path) or (isinstance(value, str) and value.startswith("/")):
        return Path(value).name
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _print_tables(bench: str, claims: Sequence[Claim], results: Mapping[str, Sequence[float]], path: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("series", "n", "median", "min", "max", "IQR", title=bench)
    for name, values in results.items():
        row = spread(values)
        figures = (f"{row[key]:.4g}" if values else "-" for key in ("median", "min", "max", "iqr"))
        table.add_row(name, str(row["n"]), *figures)
    console.print(table)
    verdicts = Table("claim", "value", "goal", "holds")
    for claim in claims:
        value = "not run" if claim.value is None else f"{claim.value:.4g}"
        verdicts.add_row(claim.name, value, claim.goal, "yes" if claim.holds else "NO")
    console.print(verdicts)
    console.print(f"written: {path}", soft_wrap=True)
