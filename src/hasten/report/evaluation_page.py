"""`write_evaluation_page`: the scores of predicted label maps as one self-contained HTML page."""

from __future__ import annotations

import math
from pathlib import Path

from hasten.engine.evaluation.evaluate import Evaluation
from hasten.report import words
from hasten.report.html import write_page
from hasten.report.model import Page, Section, Table

TITLES = {"dice": "Dice", "iou": "IoU", "hd95": "HD95", "nsd": "NSD"}
_MOST_ROWS = 500


def write_evaluation_page(evaluation: Evaluation, out: Path) -> Path:
    """Write the page to the file `out` and return it. Raises ValueError if it cannot be written."""
    cards = tuple(
        (f"Mean {measure_title(evaluation, measure)}", text_of(evaluation.mean(measure), measure), "over cases")
        for measure in evaluation.measures
    )
    count, others = len(evaluation.cases), evaluation.num_labelled - len(evaluation.cases)
    rest = f"; {others} further labelled cases have no prediction" if others else ""
    page = Page(
        title=f"{evaluation.predictions.name} against {evaluation.labels.name}",
        verdict=f"{count} case{'' if count == 1 else 's'}, mean Dice {text_of(evaluation.mean(), 'dice')}{rest}.",
        cards=cards,
        sections=(classes_section(evaluation), cases_section(evaluation)),
    )
    return write_page(page, out)


def measure_title(evaluation: Evaluation, measure: str) -> str:
    """Name and unit of a measure."""
    unit = {"hd95": " (mm)", "nsd": f" at {evaluation.tolerance_mm:g} mm"}.get(measure, "")
    return f"{TITLES[measure]}{unit}"


def text_of(value: float, measure: str) -> str:
    if math.isnan(value):
        return words.DASH
    if math.isinf(value):
        return "∞"
    return f"{value:.2f}" if measure == "hd95" else f"{value:.3f}"


def classes_section(evaluation: Evaluation) -> Section:
    """A row for each class and region: mean and standard deviation over cases, and how many count."""
    rows = []
    for name in evaluation.names:
        summaries = {measure: evaluation.summary(name, measure) for measure in evaluation.measures}
        first = summaries["dice"]
        texts = [with_spread(each.mean, each.std, measure) for measure, each in summaries.items()]
        infinite = [str(summaries["hd95"].infinite)] if "hd95" in summaries else []
        rows.append((name, *texts, str(first.count), str(first.empty), *infinite))
    titles = [measure_title(evaluation, measure) for measure in evaluation.measures]
    columns = ("Class", *titles, "Cases", "Empty", *(["Infinite HD95"] if evaluation.surfaces else []))
    table = Table(columns, rows=tuple(rows), numeric=tuple(range(1, len(columns))))
    note = (
        "Mean ± standard deviation over cases. Empty: cases that hold the class neither in the label map nor in the "
        "prediction, which are left out."
    )
    if evaluation.surfaces:
        note += " Infinite HD95: cases where only one of the two holds it; they are left out of the mean of HD95 alone."
    return Section(title="Classes", table=table, note=note)


def with_spread(mean: float, std: float, measure: str) -> str:
    """`0.912 ± 0.031`."""
    return f"{text_of(mean, measure)} ± {text_of(std, measure)}" if math.isfinite(std) else text_of(mean, measure)


def cases_section(evaluation: Evaluation) -> Section:
    """A row for each case and class, the case with the lowest mean Dice first."""
    means = evaluation.case_means()
    order = sorted(means, key=lambda case: (math.isnan(means[case]), means[case]))
    place = {case: number for number, case in enumerate(order)}
    rows = []
    for score in sorted(evaluation.scores, key=lambda score: place[score.case]):
        texts = [text_of(getattr(score, measure), measure) for measure in evaluation.measures]
        rows.append((score.case, score.name, *texts, f"{score.labelled:,}", f"{score.predicted:,}"))
    titles = [measure_title(evaluation, measure) for measure in evaluation.measures]
    note = f"The {_MOST_ROWS} lowest of {len(rows)} rows; evaluation.csv has all." if len(rows) > _MOST_ROWS else ""
    columns = ("Case", "Class", *titles, "Labelled voxels", "Predicted voxels")
    table = Table(columns, rows=tuple(rows[:_MOST_ROWS]), numeric=tuple(range(2, len(columns))))
    return Section(title="Cases, lowest Dice first", table=table, note=note)
