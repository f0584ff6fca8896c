"""`write_report`: run directories as one self-contained HTML page."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hasten.evaluation.crossval import summarise
from hasten.observe.folds import is_cross_validation
from hasten.observe.notebook import PagePath
from hasten.report import words
from hasten.report.compare import KIND, comparison_page
from hasten.report.evaluation_page import write_crossval_page
from hasten.report.html import write_page
from hasten.report.model import Note, Page, Section
from hasten.report.read import Run, read_run
from hasten.report.run_page import run_cards, run_sections, status_badge

log = logging.getLogger(__name__)


def write_report(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write one self-contained HTML page about run directories, or about a cross-validation.

    The file is replaced atomically, so a reader never sees half a page.

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
            raise ValueError("write_report: a cross-validation has a separate page; name it alone, or name its folds")
        return PagePath(write_crossval_page(summarise(runs[0]), out / "report.html" if out.is_dir() else out))
    loaded = _distinct([read_run(Path(folder)) for folder in runs])
    for run in loaded:
        for note in run.notes:
            log.warning("%s: %s", run.folder, note)
    return PagePath(write_page(_page(loaded), out / "report.html" if out.is_dir() else out))


def _page(runs: list[Run]) -> Page:
    sections = [
        Section(
            run.name,
            badge=status_badge(run),
            text=words.verdict(run),
            cards=run_cards(run),
            warning=Note("To know when reading this", run.notes),
            sections=run_sections(run, f"run-{number}", folded=len(runs) > 1),
            id=f"run-{number}",
        )
        for number, run in enumerate(runs, start=1)
    ]
    if len(runs) > 1:
        return comparison_page(runs, sections)
    (one,) = sections
    rest = replace(one, title="", badge="", text="", cards=())
    return Page(title=one.title, kind=KIND, badge=one.badge, verdict=one.text, cards=one.cards, sections=(rest,))


def _distinct(runs: list[Run]) -> list[Run]:
    """Equal names are distinguished by their folders."""
    names = [run.name for run in runs]
    return [replace(run, name=f"{run.name} ({run.folder})") if names.count(run.name) > 1 else run for run in runs]
