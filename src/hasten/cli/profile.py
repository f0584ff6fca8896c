"""`hasten profile`."""

from __future__ import annotations

import shlex
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
    nsys: Annotated[
        bool, typer.Option("--nsys", help="Have Nsight Systems look instead: print its command, and run it if it can.")
    ] = False,
) -> None:
    """Show where the time of a training's steps goes: by phase, transform, module, operation and kernel."""
    from hasten.doctor.profile.write import choose
    from hasten.observe.folder import empty_folder

    chosen = choose(formats)
    if steps < 1:
        raise ValueError(f"--steps {steps}: give 1 or more")
    if cases < 1:
        raise ValueError(f"--cases {cases}: give 1 or more")
    config = run_from(source, overrides or [])
    if nsys:
        _nsight(source, overrides or [], empty_folder(out), steps, cases)
        return

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


def _nsight(source: str, overrides: list[str], out: Path, steps: int, cases: int) -> None:
    from hasten.doctor.profile.nsight import nsight_command, run_nsight

    arguments = [source, *overrides, "--steps", str(steps), "--cases", str(cases)]
    command = nsight_command(arguments, out)
    echo(shlex.join(command))
    out.mkdir(parents=True, exist_ok=True)
    code = run_nsight(command)
    if code is None:
        echo("nsys is not on the PATH: install Nsight Systems and give the command above", err=True)
    elif code:
        raise typer.Exit(code)


def _summary_lines(out: Path) -> list[str]:
    from hasten.doctor.profile.write import PAGE, TRACE

    labels = {PAGE: "report", "summary.json": "summary", "summary.csv": "table"}
    lines = [f"{word:<10} {out / name}" for name, word in labels.items() if (out / name).exists()]
    return [*lines, f"{'trace':<10} {out / TRACE} (open in https://ui.perfetto.dev or chrome://tracing)"]
