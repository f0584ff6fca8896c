"""`write_report`: run directories as one self-contained HTML page."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from hasten.engine.crossval import summarise
from hasten.observe.folds import is_cross_validation
from hasten.report import words
from hasten.report.compare import Comparison, compare
from hasten.report.crossval_page import write_crossval_page
from hasten.report.figures import Line, color, curves
from hasten.report.machine import machine_view
from hasten.report.read import Run, read_run
from hasten.report.template import render, write_page
from hasten.report.view import DIFFERENCE_KEYS, Key, view_of

log = logging.getLogger(__name__)


def write_report(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write one self-contained HTML page about run directories, or about a cross-validation.

    The file is replaced in one move, so a page that is open is never half there.

    Args:
        runs: run directories; the first is the one that the others are compared with. The folder of a cross-validation,
            alone, gives a page about its folds, and its cv.json is rewritten.
        out: the file to write, or a folder, in which it is called report.html.

    Returns:
        Its path.

    Raises:
        ValueError: if `runs` is empty or names a directory that no run wrote.

    Example:
        >>> page = hasten.write_report(["runs/first"], "first.html")
    """
    if not runs:
        raise ValueError("write_report: `runs` is empty; give at least one run directory")
    out = Path(out)
    if any(is_cross_validation(Path(folder)) for folder in runs):
        if len(runs) > 1:
            raise ValueError("write_report: a cross-validation has a page of its own; name it alone, or name its folds")
        return write_crossval_page(summarise(runs[0]), out / "report.html" if out.is_dir() else out)
    loaded = _distinct([read_run(Path(folder)) for folder in runs])
    for run in loaded:
        for note in run.notes:
            log.warning("%s: %s", run.folder, note)
    comparison = compare(loaded) if len(loaded) > 1 else None
    views = [view_of(run, f"run-{index}") for index, run in enumerate(loaded, start=1)]
    html = render(
        "page.html.j2",
        views=views,
        machines={view.id: machine_view(view.run.machine, view.id) for view in views},
        comparison=comparison,
        comparison_figure=_comparison_figure(loaded, comparison) if comparison else Markup(),
        comparison_keys=_comparison_keys(loaded, comparison) if comparison else [],
        difference_keys=DIFFERENCE_KEYS,
        duration=words.duration,
        threshold=words.threshold,
    )
    return write_page(html, out / "report.html" if out.is_dir() else out)


def _distinct(runs: list[Run]) -> list[Run]:
    """Names for the runs: equal names are distinguished by their folders, and by position if those are equal too."""
    names = [run.name for run in runs]
    named = [
        replace(run, name=f"{run.name} ({run.folder.resolve().name})") if names.count(run.name) > 1 else run
        for run in runs
    ]
    names = [run.name for run in named]
    return [
        replace(run, name=f"{run.name} #{index}") if names.count(run.name) > 1 else run
        for index, run in enumerate(named, start=1)
    ]


def _comparison_figure(runs: list[Run], comparison: Comparison) -> Markup:
    if all(len(run.validations) < 2 for run in runs):
        return Markup()
    lines = [
        Line(
            seconds=[record.time_s for record in run.validations],
            values=[record.score for record in run.validations],
            color=color(index),
            width=2.2,
        )
        for index, run in enumerate(runs)
    ]
    figure = curves(
        lines,
        id_prefix="comparison",
        describe=f"Validations of {len(runs)} runs: {comparison.metric} over time",
        target=comparison.threshold,
    )
    return Markup(figure)


def _comparison_keys(runs: list[Run], comparison: Comparison) -> list[Key]:
    keys = [Key(name=run.name, color=color(index)) for index, run in enumerate(runs)]
    if comparison.threshold is not None:
        keys.append(Key(name="compared at", color="--muted", detail=words.threshold(comparison.threshold), dashed=True))
    return keys
