"""Formatting of numbers and verdicts as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from hasten.observe import values
from hasten.report.read import Run

DASH = "–"
NBSP = "\u00a0"
"""No-break space, between a number and its unit."""

_ABBREVIATIONS = {"cpu", "cuda", "ema", "gpu", "ram", "utc"}

METRIC = {"mean_dice": "mean Dice", "dice": "mean Dice", "mean_iou": "mean IoU"}


def duration(seconds: float | None) -> str:
    """Seconds as `hasten.observe.values.duration` has them, without a line break in it."""
    return DASH if seconds is None else values.duration(seconds).replace(" ", NBSP)


def short_duration(seconds: float | None) -> str:
    """The time of one step, in ms below one second."""
    return duration(seconds) if seconds is None or seconds >= 1 else f"{seconds * 1000:.3g}{NBSP}ms"


def share(fraction: float | None) -> str:
    return DASH if fraction is None else f"{100 * fraction:.1f}{NBSP}%"


def number(value: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def score(value: float | None) -> str:
    return DASH if value is None else f"{value:.3f}"


def threshold(value: float) -> str:
    """A target with the decimals it was given with, two at least."""
    return f"{value:.2f}" if abs(value - round(value, 2)) < 1e-9 else f"{value:.4g}"


def metric(run: Run) -> str:
    return METRIC.get(run.metric, run.metric.replace("_", " "))


def common_metric(runs: Sequence[Run]) -> str:
    """The metric of the compared runs; names all of them if the runs use different ones."""
    names = list(dict.fromkeys(metric(run) for run in runs))
    return names[0] if len(names) == 1 else f"score ({' or '.join(names)})"


def plain(value: Any) -> str:
    """A JSON value without its punctuation: [40, 56, 40] as `40, 56, 40`, null and what is empty as `none`."""
    if value is None or value in ([], {}, ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(f"({plain(entry)})" if isinstance(entry, (list, tuple)) else plain(entry) for entry in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {plain(entry)}" for key, entry in value.items())
    return str(value)


def title(name: str) -> str:
    """A setting's or field's name as words: `batch_size` as `Batch size`."""
    words = name.lower().replace("_", " ").split()
    text = " ".join(word.upper() if word in _ABBREVIATIONS else word for word in words)
    return f"{text[:1].upper()}{text[1:]}"


def reached_by_all(scores: Iterable[Sequence[tuple[float, float]]]) -> float | None:
    """The highest score, in hundredths, that all runs with validations reached. scores: as `Run.scores`, of each."""
    tops = [max(score for _, score in each) for each in scores if each]
    return math.floor(min(tops) * 100 + 1e-9) / 100 if tops else None


def time_to(run: Run, level: float) -> float | None:
    """Seconds until a validation first reached `level`; None if none did."""
    if run.target_time_s is not None and run.target is not None and abs(run.target - level) < 1e-9:
        return run.target_time_s
    return next((time_s for time_s, score in run.scores if score >= level), None)


def verdict(run: Run) -> str:
    """One sentence: the score, what it cost, and whether the data kept up."""
    steps = [] if run.steps is None else [f"{run.steps:,} steps"]
    cost = " and ".join(steps + ([] if run.total_s is None else [duration(run.total_s)]))
    if run.best_score is None:
        text = "No validation was recorded" + (f" in {cost}" if cost else "")
    else:
        name = metric(run)
        text = f"{name[:1].upper()}{name[1:]} {run.best_score:.3f}" + (f" after {cost}" if cost else "")
    reached = None if run.target is None else time_to(run, run.target)
    if run.target is not None:
        yet = " yet" if run.status == "in_progress" else ""
        target = f"the target of {threshold(run.target)}"
        text += f", {target} after {duration(reached)}" if reached is not None else f", {target} not reached{yet}"
    if run.wait_share is not None:
        text += f"; {share(run.wait_share)} of the step time waited for data"
    ending = {
        "interrupted": " The run was interrupted.",
        "failed": " The run failed.",
        "in_progress": " The run is in progress.",
    }
    return f"{text}.{ending.get(run.status, '')}"
