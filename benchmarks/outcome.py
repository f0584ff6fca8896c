"""What finished runs say about time to a Dice: times, lower bounds where a run was cut off, ratios.

A run that was stopped before it reached a Dice needs at least the seconds that it ran. Its bound takes the place of its
time, so that a median over seeds, and a ratio to it, is a lower bound too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Claim

Result = Mapping[str, Any]
"""The result file of an arm, as `benchmarks.peers.common.Record` writes it."""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds from process start to a Dice; if not `reached`, a lower bound of them."""

    seconds: float
    reached: bool


def time_to(result: Result, level: float) -> Time:
    """When the first validation scored at least `level`, or how long the run tried."""
    for point in result["curve"]:
        if point["dice"] is not None and point["dice"] >= level:
            return Time(point["seconds"], True)
    if result["stopped"] == "max_seconds":
        return Time(float(result["settings"]["max_seconds"]), False)
    return Time(result["curve"][-1]["seconds"] if result["curve"] else 0.0, False)


def median_time(results: Sequence[Result], level: float) -> Time | None:
    """Median over runs; `reached` says that it is exact, whatever the runs that were cut off would have taken."""
    times = [time_to(result, level) for result in results]
    if not times:
        return None
    low = statistics.median(time.seconds for time in times)
    high = statistics.median(time.seconds if time.reached else math.inf for time in times)
    return Time(low, low == high)


def faster(name: str, ours: Sequence[Result], peer: Sequence[Result], level: float, goal: float) -> Claim:
    """The claim that ours reaches `level` in 1 / `goal` of the peer's time. Ours must be a time, not a bound."""
    mine, theirs = median_time(ours, level), median_time(peer, level)
    if mine is None or theirs is None or not mine.reached:
        why = "not run" if mine is None or theirs is None else "not reached by Hasten"
        return Claim.at_least(f"{name} ({why})", None, goal)
    if not theirs.reached:
        name += f" (at least: stopped after {theirs.seconds:.0f} s)"
    return Claim.at_least(name, theirs.seconds / mine.seconds, goal)


def best_within(results: Sequence[Result], seconds: float) -> float | None:
    """Median over runs of the best Dice of a validation that ended within `seconds`."""
    tops = [
        max((p["dice"] for p in result["curve"] if p["dice"] is not None and p["seconds"] <= seconds), default=None)
        for result in results
    ]
    found = [top for top in tops if top is not None]
    return statistics.median(found) if found else None


def cell(results: Sequence[Result], level: float) -> str:
    """median [min-max], n reached; `>` before what is a lower bound."""
    median = median_time(results, level)
    if median is None:
        return "-"
    times = [time_to(result, level) for result in results]
    count = f"{sum(time.reached for time in times)}/{len(times)}"
    if not any(time.reached for time in times):
        return f"> {median.seconds:.0f} s, {count}"
    low, high = min(times, key=lambda time: time.seconds), max(times, key=lambda time: time.seconds)
    bounds = "-".join(f"{'' if time.reached else '> '}{time.seconds:.1f}" for time in (low, high))
    return f"{'' if median.reached else '> '}{median.seconds:.1f} s [{bounds}], {count}"


def series(results: Mapping[str, Sequence[Result]], levels: Sequence[float]) -> dict[str, list[float]]:
    """Raw seconds of every arm and level; `_at_least_s` holds those of the runs that were cut off."""
    found: dict[str, list[float]] = {}
    for arm, runs in results.items():
        for level in levels:
            times = [time_to(run, level) for run in runs]
            found[f"{arm}/to_{level:.2f}_s"] = [time.seconds for time in times if time.reached]
            found[f"{arm}/to_{level:.2f}_at_least_s"] = [time.seconds for time in times if not time.reached]
        found[f"{arm}/best_dice"] = [run["best"] for run in runs if run["best"] is not None]
        found[f"{arm}/epoch_s"] = [
            statistics.median(run["seconds_per_epoch"]) for run in runs if run["seconds_per_epoch"]
        ]
    return {name: values for name, values in found.items() if values}
