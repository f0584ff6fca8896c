"""`hasten evaluate`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hasten.cli.source import Quiet
from hasten.cli.terminal import counted, echo, tell
from hasten.observe.folds import POSTPROCESSING_YAML

if TYPE_CHECKING:
    from hasten.evaluation.crossval import Chosen
    from hasten.evaluation.evaluate import Evaluation

PAGE, TRIED = "evaluation.html", "tried"
_SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)+=")


def evaluate(
    predictions: Annotated[
        Path,
        typer.Argument(
            metavar="PREDICTIONS|RUN", help="Folder of predicted label maps; or a run, to predict its validation cases."
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LABELS|infer.a=value",
            help="Folder of label maps of the same names, or a data set that has them. Of a run instead: settings of "
            "the section infer to try beside its own.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for evaluation.csv, evaluation.json and evaluation.html. Of a run with settings, the scores "
            "with these are in its folder tried."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run whose classes and regions are scored; default: those of LABELS.")
    ] = None,
    tolerance_mm: Annotated[
        float | None,
        typer.Option(
            help="Distance up to which NSD takes surfaces for equal; in px of pictures. Default: 1 mm or 1 px; 1 µm "
            "(0.001) where every voxel is smaller than 10 µm."
        ),
    ] = None,
    surfaces: Annotated[
        bool, typer.Option("--surfaces/--no-surfaces", help="Measure HD95 and NSD, which take most of the time.")
    ] = True,
    num_workers: Annotated[int | None, typer.Option(help="Cases at once; default: one for each core.")] = None,
    postprocessing: Annotated[
        bool,
        typer.Option("--postprocessing", help="Of a run: choose by these cases how its predictions are cleaned."),
    ] = False,
    device: Annotated[str | None, typer.Option(help="Of a run: as train.device; default: the run's.")] = None,
    quiet: Quiet = False,
) -> None:
    """Score predicted label maps: Dice, IoU, HD95 and NSD of each case and class, on the label maps' own voxels.

    Of a run: the label maps that its best weights predict for its validation cases, and with settings of infer how much
    these change.
    """
    from hasten.evaluation.evaluate import evaluate as score
    from hasten.evaluation.evaluate import write_evaluation
    from hasten.evaluation.examples import examples_of
    from hasten.report.evaluation_page import write_evaluation_page

    overrides = [word for word in words or () if _SETTING.match(word)]
    labels = [word for word in words or () if word not in overrides]
    if len(labels) > 1:
        raise ValueError(f"{labels[1]}: is one too many; name one LABELS")
    if labels and (overrides or postprocessing or device):
        raise ValueError("LABELS: label maps are scored as they are; leave out LABELS to evaluate a run with settings")
    if not labels:
        if run is not None or tolerance_mm is not None or num_workers is not None:
            raise ValueError("LABELS: is missing; --run, --tolerance-mm and --num-workers are of label maps")
        choices = {"postprocessing": postprocessing, "surfaces": surfaces, "device": device}
        _of_run(predictions, overrides, out, tick=counted(quiet), **choices)
        return
    evaluation = score(
        predictions,
        labels[0],
        run=run,
        tolerance_mm=tolerance_mm,
        surfaces=surfaces,
        num_workers=num_workers,
        tick=counted(quiet),
    )
    echo("\n".join(_table(evaluation)))
    if out is not None:
        write_evaluation(evaluation, out)
        page = write_evaluation_page(evaluation, out / PAGE, examples=examples_of(evaluation))
        echo(f"report     {page}")


def _of_run(run: Path, overrides: list[str], out: Path | None, **options: Any) -> None:
    from hasten.evaluation.crossval import evaluate_run
    from hasten.evaluation.evaluate import write_evaluation
    from hasten.report.evaluation_page import write_trials_page

    comparison = evaluate_run(run, overrides=overrides, out=out, **options)
    echo("\n".join(_table(comparison.own.evaluation)))
    if comparison.other is not None:
        before, after = comparison.own.evaluation.mean(), comparison.other.evaluation.mean()
        better, cases = comparison.better()
        echo(f"\nwith {' '.join(overrides)}")
        echo("\n".join(_table(comparison.other.evaluation)))
        tell(
            f"\nmean Dice {before:.4f} -> {after:.4f} ({after - before:+.4f}), higher in {better} of {cases} cases; "
            f"{comparison.other.passes / comparison.own.passes:.2f} times the windows through the network"
        )
    if comparison.chosen is not None:
        echo("\n".join(["", *_cleanings(comparison.chosen, run, comparison.own.evaluation.unit)]))
    if out is not None:
        write_evaluation(comparison.own.evaluation, out)
        if comparison.other is not None:
            write_evaluation(comparison.other.evaluation, out / TRIED, overrides)
        echo(f"report     {write_trials_page(comparison, out / PAGE)}")


def _cleanings(choice: Chosen, run: Path, unit: str) -> list[str]:
    if not choice.cleanings:
        return ["no post-processing is better than none"]
    lines = [
        f"post-processing of {each.name}: {each.text(unit)}; "
        f"Dice {choice.before[each.name]:.4f} -> {choice.after[each.name]:.4f}"
        for each in choice.cleanings.values()
    ]
    return [*lines, f"{run / POSTPROCESSING_YAML} (`hasten predict` applies it; --no-postprocessing leaves it out)"]


def _table(evaluation: Evaluation) -> list[str]:
    from hasten.report.evaluation_page import classes_table
    from hasten.report.model import table_lines

    lines = table_lines(classes_table(evaluation))
    total = evaluation.pairs.num_labelled
    others = total - len(evaluation.cases)
    return [*lines, *([f"{others} of {total} labelled cases have no prediction"] if others else [])]
