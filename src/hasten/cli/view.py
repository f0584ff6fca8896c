"""`hasten view`, `hasten watch` and `hasten report`: what shows runs and data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from hasten.cli.source import Quiet, TrustChangedCode, run_from
from hasten.cli.terminal import counted, duration_from, echo


def view(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN|DATA", help="Folder of a training run; with --batch a SOURCE, as `train` takes it."
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CASE|a.b=value",
            help="Cases; default: worst, median and best of the last validation. With --batch instead: settings.",
        ),
    ] = None,
    batch: Annotated[
        bool, typer.Option("--batch", help="Show the first augmented patches of a training on DATA.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the pages; default RUN/view. With --batch a file; default batch.html."),
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Folder of label maps to show; default: what the run's best weights predict.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda[:N], mps or xpu[:N]; default: the run's.")] = None,
    trust_changed_code: TrustChangedCode = False,
    quiet: Quiet = False,
) -> None:
    """Write HTML pages to look at cases slice by slice, with label, prediction and error; or at augmented patches.

    The pages need no server and no network: open them in a browser.
    """
    from hasten.pathology.config import is_detection_run
    from hasten.report.view import write_batch_page, write_case_pages

    if batch:
        if predictions is not None or trust_changed_code:
            raise ValueError(
                "--batch: shows patches before training, which have no prediction; leave out other options"
            )
        overrides = [*(words or []), *([f"train.device={device}"] if device else [])]
        echo(f"view       {write_batch_page(run_from(source, overrides), out or Path('batch.html'))}")
        return
    run = Path(source)
    if is_detection_run(run):
        raise ValueError(f"{run}: is a run on slides, which has no label maps; its heat maps are `hasten predict`'s")
    pages = write_case_pages(
        run,
        words or [],
        out or run / "view",
        predictions=predictions,
        device=device,
        trust_changed_code=trust_changed_code,
        tick=counted(quiet),
    )
    for page in pages:
        echo(f"view       {page}")


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder that a training run writes, its --out.")],
    once: Annotated[bool, typer.Option("--once", help="Print the current state and stop.")] = False,
    every: Annotated[float, typer.Option(parser=duration_from(0.1), help="Seconds between updates.")] = 1.0,
) -> None:
    """Show a run's progress from the files in its folder; it may run elsewhere, or have ended."""
    from rich.console import Console
    from rich.live import Live

    from hasten.observe.monitor.watch import view_of

    console = Console(highlight=False)
    if not once and not run.exists():
        console.print(f"{run}: does not exist yet; waiting for the run to begin (Ctrl-C ends)", soft_wrap=True)
        while not run.exists():
            time.sleep(every)
    view = view_of(run)
    # What is not a terminal gets one frame, as it can't be drawn over.
    if once or not console.is_terminal:
        console.print(view.frame)
        return
    with Live(view.frame, console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while not view.is_over:
            time.sleep(every)
            view = view_of(run)
            live.update(view.frame, refresh=True)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of training runs; several are compared.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about one or more runs."""
    from hasten.report.page import write_report

    echo(f"report     {write_report(runs, out)}")
