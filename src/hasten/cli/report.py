"""`hasten report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.terminal import echo


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of training runs; several are compared.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about one or more runs."""
    from hasten.report.page import write_report

    echo(f"report     {write_report(runs, out)}")
