"""`hasten tune`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import SOURCE_HELP, Overrides, run_from
from hasten.cli.terminal import duration_from, echo


def tune(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE_HELP + " Or the folder of a run.")],
    out: Annotated[Path, typer.Option(help="Folder for tuned.yaml and tune.json; new or empty.")],
    overrides: Overrides = None,
    seconds: Annotated[
        float, typer.Option(parser=duration_from(1), help="Time limit, such as 300 or 5m; a longer search tries more.")
    ] = 300.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print what is being compared.")] = False,
) -> None:
    """Search for the fastest settings of a run on this machine; write them as a run's YAML."""
    config = run_from(source, overrides or [])

    from hasten.doctor.tune import tune as search
    from hasten.report.model import print_table

    told = None if quiet else lambda text: echo(text, err=True)
    result = search(config, out, seconds=seconds, echo=told)
    if not quiet:
        print_table(result.table())
    echo("\n".join(result.lines()))
    echo(f"train      hasten train {shlex.quote(str(result.out / 'tuned.yaml'))} --out FOLDER")
