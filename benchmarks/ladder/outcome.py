"""What finished runs say about time to a target: times, and lower bounds where a run was cut off.

A run that was stopped before it reached a value needs at least the seconds that it ran. Its bound takes the place of
its time, so that a median over seeds, and a ratio to it, is a lower bound too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.report import words

Result = Mapping[str, Any]
"""The result file of an arm, as `benchmarks.ladder.record.Record` writes it."""


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds from process start to a value; if not `reached`, a lower bound of them."""

    seconds: float
    reached: bool

    def __str__(self) -> str:
        return f"{'' if self.reached else '> '}{words.duration(self.seconds)}"


def metric_of(result: Result) -> str:
    return str(result["settings"].get("metric", "dice"))


def point_at(result: Result, level: float) -> dict[str, Any] | None:
    """The first validation at or above `level`."""
    name = metric_of(result)
    return next((point for point in result["curve"] if point[name] is not None and point[name] >= level), None)


def time_to(result: Result, level: float) -> Time:
    """When the first validation scored at least `level`, or how long the run tried."""
    point = point_at(result, level)
    if point is not None:
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


def best_within(results: Sequence[Result], seconds: float) -> float | None:
    """Median over runs of the best value of a validation that ended within `seconds`."""
    tops = [
        max(
            (p[metric_of(result)] for p in result["curve"] if p[metric_of(result)] is not None
             and p["seconds"] <= seconds), default=None,
        )
        for result in results
    ]  # fmt: skip
    return median(tops)


def median(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None if none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def epoch_seconds(results: Sequence[Result]) -> float | None:
    """Median over runs of each run's median epoch."""
    return median(statistics.median(run["seconds_per_epoch"]) if run["seconds_per_epoch"] else None for run in results)


def epochs_to(results: Sequence[Result], level: float) -> float | None:
    """Median over the runs that reached `level`; None if none did."""
    points = (point_at(result, level) for result in results)
    return median(point["epoch"] if point is not None else None for point in points)


def spread(results: Sequence[Result], level: float) -> str:
    """The least and the largest time of several runs, `>` before what is a lower bound; empty for one run."""
    if len(results) < 2:
        return ""
    times = sorted((time_to(result, level) for result in results), key=lambda time: time.seconds)
    return f"{times[0]} to {times[-1]}"
