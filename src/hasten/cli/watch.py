"""`hasten watch`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.terminal import duration_from


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a training run writes, its --out.")],
    once: Annotated[bool, typer.Option("--once", help="Print the current state and stop.")] = False,
    every: Annotated[float, typer.Option(parser=duration_from(0.1), help="Seconds between updates.")] = 1.0,
) -> None:
    """Show a run's progress from the files in its folder; it may run elsewhere, or have ended."""
    from rich.console import Console
    from rich.live import Live

    from hasten.observe.monitor.watch import frame, view_of

    console = Console(highlight=False)
    if not once and not run.exists():
        console.print(f"{run}: does not exist yet; waiting for the run to begin (Ctrl-C ends)", soft_wrap=True)
        while not run.exists():
            time.sleep(every)
    view = view_of(run)
    # What is not a terminal gets one frame, as it can't be drawn over.
    if once or not console.is_terminal:
        console.print(frame(view), soft_wrap=not console.is_terminal)
        return
    with Live(frame(view), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while not view.is_over:
            time.sleep(every)
            view = view_of(run)
            live.update(frame(view), refresh=True)
