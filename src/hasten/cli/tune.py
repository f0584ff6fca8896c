"""`hasten tune`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import SOURCE_HELP, Overrides, run_from
from hasten.cli.terminal import echo


def tune(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCE_HELP + " Or the folder of a run.")],
    out: Annotated[Path, typer.Option(help="Folder for tuned.yaml and tune.json; new or empty.")],
    overrides: Overrides = None,
) -> None:
    """Measure the fastest settings of a run on this machine; write them as a run's YAML."""
    config = run_from(source, overrides or [])

    from hasten.doctor.tune import tune as search
    from hasten.report.terminal import print_table

    result = search(config, out, echo=lambda text: echo(text, err=True))
    print_table(result.table())
    echo("\n".join(result.lines()))
    echo(f"train      hasten train {shlex.quote(str(result.out / 'tuned.yaml'))} --out FOLDER")
