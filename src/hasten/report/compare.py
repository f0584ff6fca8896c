"""Comparison of several runs with the first of them."""

from __future__ import annotations

import math

from markupsafe import Markup

from hasten.observe.values import mapping
from hasten.report import words
from hasten.report.figures import Line, color, line_chart
from hasten.report.model import Chart, Key, Note, Page, Section, Table, badge
from hasten.report.read import Run

KIND = "training report"
_NOTE = (
    "Speed-ups are against the first run. An epoch is as many samples as there are training cases. Times count from "
    "the start of a run; where it was resumed, those of all its processes add up, without the pauses between them."
)


def comparison_page(runs: list[Run], sections: list[Section]) -> Page:
    """Compare `runs` (two or more, names distinct) with the first. sections: one about each run, `run-1` first."""
    threshold, metric = _threshold(runs), words.common_metric(runs)
    times = [None if threshold is None else words.time_to(run, threshold) for run in runs]
    column = f"Time to {metric} {words.threshold(threshold)}" if threshold is not None else "Time to target"
    columns = (
        *("Run", column, "Speed-up in time", f"Best {metric}", "Per step", "Per epoch", "Samples/s"),
        *("Speed-up in samples/s", "Waited for data", "Total"),
    )
    rows = tuple(
        (
            Markup('<a href="#run-{}">{}</a><br>{}').format(
                index, run.name, badge(words.STATUS.get(run.status, run.status))
            ),
            words.duration(time_s) if time_s is not None else "not reached",
            _ratio(times[0], time_s),
            words.score(run.best_score),
            words.short_duration(step_seconds(run)),
            words.short_duration(_epoch_seconds(run)),
            words.number(run.samples_per_s),
            _ratio(run.samples_per_s, runs[0].samples_per_s),
            words.share(run.wait_share),
            words.duration(run.total_s),
        )
        for index, (run, time_s) in enumerate(zip(runs, times, strict=True), start=1)
    )
    table = Table(columns, rows, numeric=tuple(range(1, len(columns))))
    chart = Section("", charts=(_chart(runs, metric, threshold),))
    warning = Note("Not of the same cases", _other_cases(runs))
    comparison = Section("Comparison", warning=warning, table=table, note=_NOTE, sections=(chart,), id="comparison")
    return Page(
        title=f"{len(runs)} runs compared",
        kind=KIND,
        verdict=_verdict(runs, times, threshold),
        sections=(comparison, *sections),
    )


def _chart(runs: list[Run], metric: str, threshold: float | None) -> Chart:
    keys = [Key(run.name, color(index)) for index, run in enumerate(runs)]
    if threshold is not None:
        keys.append(Key("compared at", "--muted", words.threshold(threshold), dashed=True))
    if all(len(run.validations) < 2 for run in runs):
        return Chart("", keys=tuple(keys))
    lines = [
        Line(
            x=[record.time_s for record in run.validations],
            y=[record.score for record in run.validations],
            color=color(index),
            width=2.2,
        )
        for index, run in enumerate(runs)
    ]
    describe = f"Validations of {len(runs)} runs: {metric} over time"
    svg = line_chart(lines, id_prefix="comparison", describe=describe, level=threshold)
    return Chart(svg, f"Validations: {metric} over time", tuple(keys))


def _other_cases(runs: list[Run]) -> tuple[str, ...]:
    """Why the scores of the runs are not to be compared; empty if they are."""
    first, *others = runs
    notes = [
        f"{run.name} has another data.{name} than {first.name}, so that their scores are of other cases."
        for run in others
        for name in ("source", "split")
        if name in run.data and name in first.data and run.data[name] != first.data[name]
    ]
    shortened = [
        f"{run.name}: the validation is shortened to {mapping(run.accelerators['shorter validation']).get('reason')}."
        for run in runs
        if "shorter validation" in run.accelerators
    ]
    return (*notes, *shortened)


def step_seconds(run: Run) -> float | None:
    """Seconds of a step with its wait for data."""
    if not run.steps or "train" not in run.seconds:
        return None
    return (run.seconds["train"] + run.seconds.get("wait_for_data", 0.0)) / run.steps


def _epoch_seconds(run: Run) -> float | None:
    """Seconds for as many samples as there are training cases."""
    cases = run.cases.get("train")
    return cases / run.samples_per_s if cases and run.samples_per_s else None


def _threshold(runs: list[Run]) -> float | None:
    """The first run's target, or the highest score, in hundredths, that every validated run reached."""
    if runs[0].target is not None:
        return runs[0].target
    tops = [max(record.score for record in run.validations) for run in runs if run.validations]
    return math.floor(min(tops) * 100 + 1e-9) / 100 if tops else None


def _ratio(numerator: float | None, denominator: float | None) -> str:
    return f"{numerator / denominator:.2f}×" if numerator and denominator else words.DASH


def _extreme(runs: list[Run], values: list[float | None], *, sign: int = 1) -> tuple[Run, float] | None:
    """The run with the largest (sign 1) or smallest (sign -1) value, the earlier of equals; None if there is none."""
    known = [(run, value) for run, value in zip(runs, values, strict=True) if value is not None]
    return max(known, key=lambda pair: sign * pair[1], default=None)


def _verdict(runs: list[Run], times: list[float | None], threshold: float | None) -> str:
    parts = []
    fastest = _extreme(runs, times, sign=-1)
    if fastest is not None and threshold is not None:
        run, time_s = fastest
        goal = f"{words.common_metric(runs)} {words.threshold(threshold)}"
        text = f"{run.name} reached {goal} first, after {words.duration(time_s)}"
        first = times[0]
        if first is None:
            text += f"; {runs[0].name} did not reach it"
        elif run is not runs[0] and time_s > 0:
            text += f", {first / time_s:.1f} times as fast as {runs[0].name} ({words.duration(first)})"
        parts.append(text)
    best = _extreme(runs, [run.best_score for run in runs])
    if best is not None:
        parts.append(f"{'best' if parts else 'Best'} {words.common_metric(runs)} {best[1]:.3f} by {best[0].name}")
    return ("; ".join(parts) or "No run was validated") + "."
