"""`hasten train --folds`: a cross-validation."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cli.terminal import echo
from hasten.observe.clock import process_start
from hasten.observe.folds import CV_JSON, finished_folds
from hasten.observe.rundir import REPORT_HTML

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig
    from hasten.observe.progress import Progress
    from hasten.training.folds import Folds


def parse_folds(text: str) -> Folds:
    """`all`, or numbers such as 0,1,2. Raises ValueError."""
    if text.strip() == "all":
        return "all"
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise ValueError(f"--folds {text}: write all, or numbers from 0 as in 0,1,2")
    return [int(number) for number in numbers]


def check_options(folds: str | None, *, resume: bool) -> None:
    """Raise ValueError for invalid fold numbers, and options that can't be combined with --folds."""
    if folds is None:
        return
    parse_folds(folds)
    if resume:
        raise ValueError("--folds: resumes by itself; leave out --resume")


def train_all(config: RunConfig, out: Path, folds: str, progress: Progress | None) -> list[str]:
    """Train the folds and write the page; returns the closing lines of the command's output."""
    from hasten.distribute.world import detect_world
    from hasten.report.page import write_report
    from hasten.training.folds import train_folds

    summary = train_folds(config, out, parse_folds(folds), progress=progress, started=process_start())
    if not detect_world().first:
        return []
    if progress is not None:
        progress.stop()
    page = None
    try:
        for fold in finished_folds(out):
            write_report([fold], fold / REPORT_HTML)
        page = write_report([out], out / REPORT_HTML)
    except Exception as error:
        echo(f"warning: the folds are trained, but the report could not be written: {error}", fg="yellow", err=True)
    return _summary_lines(summary, out, page)


def _summary_lines(summary: dict[str, Any], out: Path, page: Path | None) -> list[str]:
    numbers = ", ".join(summary["folds"])
    over_cases, over_folds = summary["over_cases"]["dice"], summary["over_folds"]["dice"]
    spread = f"; {over_folds['mean']:.4f} ± {over_folds['std']:.4f} over folds" if len(summary["folds"]) > 1 else ""
    lines = [
        f"folds      {numbers}",
        f"mean Dice  {over_cases:.4f} over cases{spread}",
        f"summary    {out / CV_JSON}",
    ]
    if page is not None:
        lines.append(f"report     {page}")
    return [*lines, f"predict    hasten predict {shlex.quote(str(out))} IMAGE... --out FOLDER"]
