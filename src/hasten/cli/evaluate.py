"""`hasten evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hasten.cli.terminal import echo

if TYPE_CHECKING:
    from hasten.engine.evaluation.evaluate import Evaluation


def evaluate(
    predictions: Annotated[Path, typer.Argument(metavar="PREDICTIONS", help="Folder of predicted label maps.")],
    labels: Annotated[
        Path,
        typer.Argument(metavar="LABELS", help="Folder of label maps of the same names, or a data set that has them."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Folder for evaluation.csv, evaluation.json and evaluation.html.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run whose classes and regions are scored; default: those of LABELS.")
    ] = None,
    tolerance_mm: Annotated[float, typer.Option(help="Distance in mm up to which NSD takes surfaces for equal.")] = 1.0,
    surfaces: Annotated[
        bool, typer.Option("--surfaces/--no-surfaces", help="Measure HD95 and NSD, which take most of the time.")
    ] = True,
    num_workers: Annotated[int | None, typer.Option(help="Cases at once; default: one for each core.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Score predicted label maps: Dice, IoU, HD95 and NSD of each case and class, on the label maps' own voxels."""
    from hasten.engine.evaluation.evaluate import evaluate as score
    from hasten.engine.evaluation.evaluate import write_evaluation
    from hasten.report.evaluation_page import write_evaluation_page

    found = score(
        predictions, labels, run=run, tolerance_mm=tolerance_mm, surfaces=surfaces, num_workers=num_workers,
        tick=None if quiet else _show,
    )  # fmt: skip
    echo("\n".join(_table(found)))
    if out is not None:
        write_evaluation(found, out)
        page = write_evaluation_page(found, out / "evaluation.html")
        echo(f"report     {page}")


def _show(done: int, total: int, case: str) -> None:
    echo(f"{done}/{total}  {case}", err=True)


def _table(found: Evaluation) -> list[str]:
    from hasten.report.evaluation_page import text_of, titled, with_spread

    rows = [("class", *(titled(found, measure) for measure in found.measures), "cases")]
    for name in found.names:
        texts = [with_spread(found.summary(name, measure), measure) for measure in found.measures]
        rows.append((name, *texts, str(found.summary(name, "dice").count)))
    means = [text_of(found.mean(measure), measure) for measure in found.measures]
    rows.append(("mean", *means, str(len(found.cases))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    others = found.num_labelled - len(found.cases)
    return [*lines, *([f"{others} of {found.num_labelled} labelled cases have no prediction"] if others else [])]
