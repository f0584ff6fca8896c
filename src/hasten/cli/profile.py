"""`hasten profile`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import Overrides, run_from
from hasten.cli.terminal import echo


def profile(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's YAML, a data set, or the folder of a run, which is only read.")
    ],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="Folder for the profile; new or empty.")] = Path("profile"),
    formats: Annotated[str, typer.Option(help="Of json, csv and html, with commas.")] = "json,csv,html",
    steps: Annotated[int, typer.Option(help="Steps to look at, after a few to warm up.")] = 10,
    cases: Annotated[int, typer.Option(help="Cases of the validation to look at.")] = 2,
) -> None:
    """Show where the time of a training's steps goes: by phase, transform, module, operation and kernel."""
    from hasten.doctor.profile.write import choose
    from hasten.observe.rundir import empty_folder

    chosen = choose(formats)
    if steps < 1:
        raise ValueError(f"--steps {steps}: give 1 or more")
    if cases < 1:
        raise ValueError(f"--cases {cases}: give 1 or more")
    config = run_from(source, overrides or [])

    from hasten.doctor.profile.take import take
    from hasten.doctor.profile.write import write
    from hasten.observe.clock import Clock
    from hasten.observe.ranges import NVTX

    if not NVTX:
        empty_folder(out)
    clock = Clock(tell=lambda text: echo(text, err=True))
    measurement = take(config, steps=steps, cases=cases, with_profiler=not NVTX, clock=clock)
    if NVTX:
        echo(f"a step takes {1e3 * measurement.plain_s:.1f} ms; its ranges were marked for Nsight, no table is written")
        return
    write(measurement, out, formats=chosen)
    echo("\n".join(_summary_lines(out)))


def _summary_lines(out: Path) -> list[str]:
    from hasten.doctor.profile.write import PAGE, TRACE

    labels = {PAGE: "report", "summary.json": "summary", "summary.csv": "table"}
    lines = [f"{word:<10} {out / name}" for name, word in labels.items() if (out / name).exists()]
    return [*lines, f"{'trace':<10} {out / TRACE} (open in https://ui.perfetto.dev or chrome://tracing)"]
