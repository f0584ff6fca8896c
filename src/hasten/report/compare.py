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
_COLUMNS = ("Run", "Time to {}", "Speed-up", "Best {}", "Per step", "Samples/s", "Waited for data", "Total")
_NOTE = (
    "Speed-ups are against the first run. Times count from the start of a run; where it was resumed, those of all its "
    "processes add up, without the pauses between them."
)


def comparison_page(runs: list[Run], sections: list[Section]) -> Page:
    """Compare `runs` (two or more, names distinct) with the first. sections: one about each run, `run-1` first."""
    threshold, metric = _threshold(runs), words.common_metric(runs)
    goal = "target" if threshold is None else f"{metric} {words.threshold(threshold)}"
    times = [None if threshold is None else words.time_to(run, threshold) for run in runs]
    rows = tuple(
        (
            Markup('<a href="#run-{}">{}</a><br>{}').format(
                index, run.name, badge(words.STATUS.get(run.status, run.status))
            ),
            words.duration(time_s) if time_s is not None else "not reached",
            f"{times[0] / time_s:.2f}×" if times[0] and time_s else words.DASH,
            words.score(run.best_score),
            words.short_duration(step_seconds(run)),
            words.number(run.samples_per_s),
            words.share(run.wait_share),
            words.duration(run.total_s),
        )
        for index, (run, time_s) in enumerate(zip(runs, times, strict=True), start=1)
    )
    columns = tuple(column.format(goal if "Time" in column else metric) for column in _COLUMNS)
    reached = [(time_s, run.name) for time_s, run in zip(times, runs, strict=True) if time_s is not None]
    verdict = f"No run reached the {goal}."
    if reached:
        verdict = f"{min(reached)[1]} reached {goal} first, after {words.duration(min(reached)[0])}."
    comparison = Section(
        "Comparison",
        warning=Note("Not of the same cases", _other_cases(runs)),
        table=Table(columns, rows, numeric=tuple(range(1, len(columns)))),
        note=_NOTE,
        sections=(Section("", charts=(_chart(runs, metric, threshold),)),),
        id="comparison",
    )
    return Page(title=f"{len(runs)} runs compared", kind=KIND, verdict=verdict, sections=(comparison, *sections))


def _chart(runs: list[Run], metric: str, threshold: float | None) -> Chart:
    keys = [Key(run.name, color(index)) for index, run in enumerate(runs)]
    if threshold is not None:
        keys.append(Key("compared at", "--muted", words.threshold(threshold), dashed=True))
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


def _threshold(runs: list[Run]) -> float | None:
    """The first run's target, or the highest score, in hundredths, that every validated run reached."""
    if runs[0].target is not None:
        return runs[0].target
    tops = [max(record.score for record in run.validations) for run in runs if run.validations]
    return math.floor(min(tops) * 100 + 1e-9) / 100 if tops else None
