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
    steps: Annotated[int, typer.Option(min=1, help="Steps to look at, after a few to warm up.")] = 10,
) -> None:
    """Show where the time of a training's steps goes: by phase, transform, module, operation and kernel."""
    from hasten.observe.rundir import empty_folder

    config = run_from(source, overrides or [])

    from hasten.doctor.profile.take import PAGE, SUMMARY, TRACE, take, write
    from hasten.observe.clock import Clock
    from hasten.observe.ranges import NVTX

    if not NVTX:
        empty_folder(out)
    clock = Clock(tell=lambda text: echo(text, err=True))
    measurement = take(config, steps=steps, with_profiler=not NVTX, clock=clock)
    if NVTX:
        echo(f"a step takes {1e3 * measurement.plain_s:.1f} ms; its ranges were marked for Nsight, no table is written")
        return
    write(measurement, out)
    echo(f"report     {out / PAGE}")
    echo(f"summary    {out / SUMMARY}")
    echo(f"trace      {out / TRACE} (open in https://ui.perfetto.dev or chrome://tracing)")
