"""`hasten train`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.source import Overrides, Quiet, Resume, SourceUnlessResumed, resumed_from, settings_from
from hasten.cli.terminal import echo
from hasten.distribute.world import detect_world
from hasten.observe.clock import process_start, process_start_seconds
from hasten.observe.folds import CV_JSON, finished_folds
from hasten.observe.progress import SHOWN
from hasten.observe.rundir import REPORT_HTML, RUN_YAML, SUMMARY_JSON

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig
    from hasten.observe.progress import Progress
    from hasten.pathology.config import DetectionConfig
    from hasten.training.folds import Folds

_REPORT_SHARE = 0.75
"""Time to write the report and exit, as a share of the time of the imports at the start."""


def train(
    out: Annotated[Path, typer.Option(help="The run's folder; new or empty, unless --resume is given.")],
    source: SourceUnlessResumed = None,
    overrides: Overrides = None,
    resume: Resume = False,
    folds: Annotated[
        str | None,
        typer.Option(
            metavar="all|0,1,2", help="Train these folds of a cross-validation, each in --out/foldN; resumes by itself."
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train on a data set; write checkpoints, metrics and a report to --out.

    `train.budget=10min` plans the run for that time, from the start of the command to the report; without it the plan's
    number of steps is made, however long that takes.

    Under torchrun, srun, mpirun or horovodrun every process runs this; `hasten launch` starts them.
    """
    world = detect_world()
    chosen = None if folds is None else parse_folds(folds, resume=resume)
    if world.restarts and (out / RUN_YAML).is_file():
        resume = True
    if resume:
        config = resumed_from(out, source, overrides or [])
    elif source is None:
        raise ValueError("name a data set or a run's YAML: hasten train SOURCE --out DIR (only --resume does without)")
    else:
        config = settings_from(source, overrides or [])
    if config.kind == "detection" and chosen is not None:
        raise ValueError(f"--folds {folds}: a run on slides has no folds; leave it out")
    if config.kind == "segmentation":
        from hasten.nets.cpu.library import build_ahead

        build_ahead()  # beside the imports, which take about as long
    from hasten.distribute.launch.record import recorded
    from hasten.observe.progress import Progress
    from hasten.runtime.out_of_memory import out_of_memory

    progress = None if quiet or not world.first else Progress()
    try:
        with recorded(short_of_memory=out_of_memory):
            summary = _trained(config, out, chosen, progress, resume=resume)
    finally:
        if progress is not None:
            progress.stop()  # restores the terminal's cursor, whatever happened
    if world.first:
        echo("\n".join(_run_lines(summary, out) if folds is None else _fold_lines(summary, out)))


def parse_folds(text: str, *, resume: bool = False) -> Folds:
    """`all`, or numbers such as 0,1,2. Raises ValueError, also for --resume, which can't be combined with --folds."""
    if resume:
        raise ValueError("--folds: resumes by itself; leave out --resume")
    numbers = [number.strip() for number in text.split(",")]
    if numbers == ["all"]:
        return "all"
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise ValueError(f"--folds {text}: write all, or numbers from 0 as in 0,1,2")
    return [int(number) for number in numbers]


def _trained(
    config: RunConfig | DetectionConfig, out: Path, folds: Folds | None, progress: Progress | None, *, resume: bool
) -> dict[str, Any]:
    """Train; returns the content of summary.json, or of cv.json."""
    timed: Any = {"started": process_start(), "reserve_s": _REPORT_SHARE * process_start_seconds()}
    if config.kind == "detection":
        from hasten.pathology.run import train_detection

        return train_detection(config, out, progress, resume=resume, **timed)
    if folds is not None:
        from hasten.training.folds import train_folds

        return train_folds(config, out, folds, progress=progress, started=timed["started"])
    from hasten.training.run import train as run

    return run(config, out, resume=resume, progress=progress, **timed)


def _closing(out: Path, name: str, *, folds: Sequence[Path] = (), kind: str = "IMAGE") -> list[str]:
    """Where everything is, once the reports are written. name: of the summary. folds: of a cross-validation."""
    lines = [f"summary    {out / name}"]
    try:
        from hasten.report.page import write_report

        # The report of slides is part of their training.
        for folder in [] if kind == "SLIDE" else [*folds, out]:
            write_report([folder], folder / REPORT_HTML)
        lines.append(f"report     {out / REPORT_HTML}")
    except Exception as error:  # the trained model is safe, so this must not fail the command
        text = f"warning: the training is complete, but its report could not be written: {error}"
        echo(text, fg="yellow", err=True)
    return [*lines, f"predict    hasten predict {shlex.quote(str(out))} {kind}... --out FOLDER"]


def _fold_lines(summary: dict[str, Any], out: Path) -> list[str]:
    """The closing lines of a cross-validation."""
    over_cases, over_folds = summary["over_cases"]["dice"], summary["over_folds"]["dice"]
    spread = f"; {over_folds['mean']:.4f} ± {over_folds['std']:.4f} over folds" if len(summary["folds"]) > 1 else ""
    return [
        f"folds      {', '.join(summary['folds'])}",
        f"mean Dice  {over_cases:.4f} over cases{spread}",
        *_closing(out, CV_JSON, folds=finished_folds(out)),
    ]


def _run_lines(summary: dict[str, Any], out: Path) -> list[str]:
    """The closing lines of a run. Times include those of the earlier processes of a resumed run."""
    lines, best, target = [], summary["best"], summary["target"]
    metric_key = best["metric"].removeprefix("mean_")
    metric = SHOWN[metric_key]
    if best["value"] is not None:
        lines.append(f"{f'best {metric}':<10} {best['value']:.4f} at step {best['step']}")
    froc = summary.get("froc", {"score": None})
    if froc["score"] is not None:
        pairs = zip(froc["rates"], froc["sensitivity"], strict=True)
        at = ", ".join(f"{value:.2f} at {rate:g}" for rate, value in pairs)
        lines.append(f"FROC       {froc['score']:.4f} (sensitivity {at} false positives a slide)")
    if target["value"] is not None:
        end = f"reached after {target['time_s']:.1f} s" if target["reached"] else "not reached"
        lines.append(f"target     {metric} {target['value']:g} {end}")
    earlier = summary["earlier_seconds"]
    since = f", {earlier:.1f} s of them before this resumption" if earlier else ""
    lines.append(f"time       {summary['seconds']['total']:.1f} s{since}")
    lines.append(f"waiting    {100 * summary['wait_share']:.1f}% of the training time was spent waiting for data")
    lines += [f"note       {doubt}" for doubt in summary.get("doubts", ())]
    return lines + _closing(out, SUMMARY_JSON, kind="SLIDE" if "froc" in summary else "IMAGE")
