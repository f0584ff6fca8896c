"""`hasten train`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.folds import check_options, train_all
from hasten.cli.source import Overrides, Quiet, Resume, SourceUnlessResumed, resumed_from, settings_from
from hasten.cli.terminal import echo
from hasten.distribute.world import detect_world
from hasten.observe.clock import process_start, process_start_seconds
from hasten.observe.progress import SHOWN
from hasten.observe.rundir import REPORT_HTML, RUN_YAML, SUMMARY_JSON

if TYPE_CHECKING:
    from hasten.config.schema import RunConfig
    from hasten.distribute.world import World
    from hasten.observe.progress import Progress
    from hasten.pathology.config import DetectionConfig


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
    check_options(folds, resume=resume)
    if world.restarts and (out / RUN_YAML).is_file():
        resume = True
    config = resumed_from(out, source, overrides or []) if resume else _new_settings(source, overrides or [])
    if config.kind == "detection" and folds is not None:
        raise ValueError(f"--folds {folds}: a run on slides has no folds; leave it out")
    if config.kind == "segmentation":
        from hasten.nets.cpu.library import build_ahead

        build_ahead()  # beside the imports, which take about as long
    with _progress_shown(world, quiet=quiet) as progress:
        lines = (
            train_all(config, out, folds, progress)
            if folds is not None and config.kind == "segmentation"
            else _train_run(config, out, progress, world, resume=resume)
        )
    if lines:
        echo("\n".join(lines))


@contextmanager
def _progress_shown(world: World, *, quiet: bool) -> Iterator[Progress | None]:
    """Show progress while the block trains, and record its failure for the launcher."""
    from hasten.distribute.launch.record import recorded
    from hasten.observe.progress import Progress
    from hasten.runtime.out_of_memory import out_of_memory

    progress = None if quiet or not world.first else Progress()
    try:
        with recorded(short_of_memory=out_of_memory):
            yield progress
    finally:
        if progress is not None:
            progress.stop()  # restores the terminal's cursor, whatever happened


def _train_run(
    config: RunConfig | DetectionConfig,
    out: Path,
    progress: Progress | None,
    world: World,
    *,
    resume: bool,
) -> list[str]:
    """Train one run and write its report; returns the closing lines of the command's output."""
    timed: Any = {"started": process_start(), "reserve_s": _REPORT_SHARE * process_start_seconds()}
    if config.kind == "detection":
        from hasten.pathology.run import train_detection

        summary = train_detection(config, out, progress, resume=resume, **timed)
    else:
        from hasten.training.run import train as run

        summary = run(config, out, resume=resume, progress=progress, **timed)
    if progress is not None:
        progress.stop()
    if not world.first:
        return []
    report = out / REPORT_HTML if config.kind == "detection" else _report(out)
    return _summary_lines(summary, out, report)


def _new_settings(source: str | None, overrides: list[str]) -> RunConfig | DetectionConfig:
    if source is None:
        raise ValueError("name a data set or a run's YAML: hasten train SOURCE --out DIR (only --resume does without)")
    return settings_from(source, overrides)


def _report(out: Path) -> Path | None:
    """The report of a finished run. Whatever fails here, the trained model is safe, so it must not fail the command."""
    try:
        from hasten.report.page import write_report

        return write_report([out], out / REPORT_HTML)
    except Exception as error:
        echo(f"warning: the run is complete, but its report could not be written: {error}", fg="yellow", err=True)
        return None


def _summary_lines(summary: dict[str, Any], out: Path, report: Path | None) -> list[str]:
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
    lines.append(f"summary    {out / SUMMARY_JSON}")
    if report is not None:
        lines.append(f"report     {report}")
    image = "SLIDE" if "froc" in summary else "IMAGE"
    lines.append(f"predict    hasten predict {shlex.quote(str(out))} {image}... --out FOLDER")
    return lines
