"""The scores of predicted label maps, and the folds of a cross-validation, each as one self-contained HTML page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from hasten.cases.formats import read_file
from hasten.cases.labels import IGNORED, to_class_index
from hasten.cases.read import read_image
from hasten.cases.types import Case
from hasten.config.load import load_run
from hasten.engine.crossval import CrossValidation
from hasten.engine.evaluation.evaluate import Evaluation
from hasten.engine.evaluation.pairs import Pair
from hasten.engine.run_plan import read_cases
from hasten.observe.progress import SHOWN
from hasten.observe.rundir import RUN_YAML
from hasten.observe.values import mapping, number
from hasten.prepare.orient import orient, orientation_of
from hasten.report import words
from hasten.report.html import write_page
from hasten.report.model import Page, Section, Table
from hasten.report.read import Example
from hasten.report.slices import DIFFERENCE_KEYS, class_keys, slice_of

TITLES = {"dice": "Dice", "iou": "IoU", "hd95": "HD95", "nsd": "NSD"}
_MOST_ROWS = 500
WORST = 6
"""Cases that are shown as pictures."""


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
        verdict=f"{count} case{'' if count == 1 else 's'}, mean Dice {text_of(evaluation.mean(), 'dice')}{rest}."
        + (f" {evaluation.training_note}." if evaluation.training_note else ""),
        cards=cards,
        sections=(classes_section(evaluation), cases_section(evaluation)),
    )
    return write_page(page, out)


def measure_title(evaluation: Evaluation, measure: str) -> str:
    """Name and unit of a measure."""
    unit = evaluation.unit
    suffix = {"hd95": f" ({unit})", "nsd": f" at {evaluation.tolerance:g} {unit}"}.get(measure, "")
    return f"{TITLES[measure]}{suffix}"


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


def write_crossval_page(crossval: CrossValidation, out: Path) -> Path:
    """Write the page to the file `out` and return it. Raises ValueError for a case that cannot be read."""
    whole = crossval.whole
    cards = []
    for measure in whole.measures:
        over_folds = with_spread(*crossval.over_folds(None, measure), measure)
        mean = text_of(whole.mean(measure), measure)
        cards.append((f"Mean {measure_title(whole, measure)}", mean, f"over cases; over folds {over_folds}"))
    folds = f"{len(crossval.folds)} fold{'' if len(crossval.folds) == 1 else 's'}"
    unfinished = f"; not finished: fold {', '.join(map(str, crossval.unfinished))}" if crossval.unfinished else ""
    page = Page(
        title=f"Cross-validation {crossval.folder.resolve().name}",
        verdict=f"{folds}, {len(whole.cases)} cases, mean Dice {text_of(whole.mean(), 'dice')}{unfinished}.",
        cards=cards,
        sections=(_folds(crossval), _classes(crossval), _cleaning(crossval), _worst(crossval), cases_section(whole)),
    )
    return write_page(page, out)


def _folds(crossval: CrossValidation) -> Section:
    whole, rows = crossval.whole, []
    for fold in crossval.folds:
        best = mapping(fold.summary.get("best"))
        metric = str(best.get("metric", "")).removeprefix("mean_")
        in_training = f"{SHOWN.get(metric, metric)} {words.score(number(best.get('value')))}"
        texts = [text_of(fold.evaluation.mean(measure), measure) for measure in whole.measures]
        rows.append((f"{fold.number}", f"{len(fold.evaluation.cases)}", f"{best.get('step')}", in_training, *texts))
    columns = (
        "Fold",
        "Cases",
        "Best step",
        "In training",
        *(measure_title(whole, measure) for measure in whole.measures),
    )
    table = Table(columns, rows=tuple(rows), numeric=tuple(range(1, len(columns))))
    note = (
        "Means over a fold's validation cases, on the images' own voxels. In training: the best validation, on the "
        "prepared voxels, which leaves out classes that a label map does not hold."
    )
    return Section(title="Folds", table=table, note=note)


def _classes(crossval: CrossValidation) -> Section:
    whole, rows = crossval.whole, []
    for name in whole.names:
        summaries = {measure: whole.summary(name, measure) for measure in whole.measures}
        rows += [
            (name, "cases", *(with_spread(each.mean, each.std, measure) for measure, each in summaries.items())),
            (name, "folds", *(with_spread(*crossval.over_folds(name, measure), measure) for measure in summaries)),
        ]
    titles = [measure_title(whole, measure) for measure in whole.measures]
    empty = [(name, whole.summary(name, "dice").empty) for name in whole.names]
    skipped = ", ".join(f"{name} {count}" for name, count in empty if count)
    note = "Mean ± standard deviation over all cases, and over the means of the folds."
    if skipped:
        note += f" Left out, as neither label map nor prediction holds the class: {skipped} cases."
    return Section(
        title="Classes",
        table=Table(columns=("Class", "Over", *titles), rows=tuple(rows), numeric=tuple(range(2, 2 + len(titles)))),
        note=note,
    )


def _cleaning(crossval: CrossValidation) -> Section:
    chosen = crossval.chosen
    if not chosen.cleanings:
        return Section(title="Post-processing", text="None: no cleaning of label maps raises the mean Dice of a class.")
    descriptions = {cleaning.name: cleaning.text(crossval.whole.unit) for cleaning in chosen.cleanings.values()}
    rows = [
        (name, descriptions.get(name, "none"), f"{chosen.before[name]:.4f}", f"{chosen.after[name]:.4f}")
        for name in crossval.whole.names
    ]
    return Section(
        title="Post-processing",
        table=Table(columns=("Class", "What is done", "Dice without", "Dice with"), rows=tuple(rows), numeric=(2, 3)),
        note="Chosen on the cases of this page, whose scores are without it. Predictions by all folds get it.",
    )


def _worst(crossval: CrossValidation) -> Section:
    order = [
        (dice, fold, case)
        for fold in crossval.folds
        for case, dice in fold.evaluation.case_means().items()
        if math.isfinite(dice)
    ]
    pairs = {pair.case: pair for pair in crossval.pairs.pairs}
    labels = crossval.pairs.labels
    slices = []
    for dice, fold, name in sorted(order, key=lambda entry: entry[0])[:WORST]:
        _, _, validation = read_cases(load_run(fold.run / RUN_YAML))
        case = next(case for case in validation if case.id == name)
        title = f"{name} (fold {fold.number})"
        example = _example(case, pairs[name], labels, crossval.pairs.ignore, title, dice)
        slices.append(slice_of(example, list(range(1, len(labels)))))
    names = [name for value, name in sorted(labels.items()) if value != 0]
    keys = (*class_keys(names), *DIFFERENCE_KEYS)
    return Section(title="Cases with the lowest Dice", slices=tuple(slices), keys=keys if slices else ())


def _example(case: Case, pair: Pair, labels: dict[int, str], ignore: int | None, name: str, dice: float) -> Example:
    """The slice on which label map and prediction disagree most, seen from the patient's feet, anterior at the top."""
    image = read_image(case)
    maps = [
        to_class_index(read_file(path, label=True).array[0], labels, path, ignore)
        for path in (pair.label, pair.prediction)
    ]
    ignored = maps[0] == IGNORED
    maps = [np.where(ignored, 0, each) for each in maps]  # nothing is right or wrong there
    depth, height, width = image.array.shape[1:]
    permute, flip = orientation_of(image.affine, "RAS", (depth, height, width))
    volume, label, prediction = (orient(array[None], permute, flip)[0] for array in (image.array[0], *maps))
    differing = (label != prediction).sum((1, 2))
    layer = int((differing if differing.any() else (label > 0).sum((1, 2))).argmax())
    plane = volume[layer].astype(np.float32)
    low, high = np.percentile(plane, (1, 99)).tolist()
    flip_axes = (0, 1) if depth > 1 else ()
    return Example(
        name=name,
        dice=dice,
        image=np.flip(((plane - low) / max(high - low, 1e-6)).clip(0, 1), flip_axes),
        label=np.flip(label[layer], flip_axes),
        prediction=np.flip(prediction[layer], flip_axes),
    )
