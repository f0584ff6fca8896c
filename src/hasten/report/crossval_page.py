"""`write_crossval_page`: the folds of a cross-validation as one self-contained HTML page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from hasten.cases.formats import read_file
from hasten.cases.labels import to_class_index
from hasten.cases.read import read_image
from hasten.cases.types import Case
from hasten.config.load import load_run
from hasten.engine.crossval import CrossValidation
from hasten.engine.evaluation.pairs import Pair
from hasten.engine.job import read_cases
from hasten.observe.progress import SHOWN
from hasten.observe.rundir import RUN_YAML
from hasten.observe.values import mapping, number
from hasten.prepare.orient import orient, orientation_of
from hasten.report import words
from hasten.report.evaluation_page import cases_section, measure_title, text_of, with_spread
from hasten.report.html import write_page
from hasten.report.model import Page, Section, Table
from hasten.report.read import Example
from hasten.report.slices import DIFFERENCE_KEYS, class_keys, slice_of

WORST = 6
"""Cases that are shown as pictures."""


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
    descriptions = {cleaning.name: str(cleaning) for cleaning in chosen.cleanings.values()}
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
        example = _example(case, pairs[name], labels, f"{name} (fold {fold.number})", dice)
        slices.append(slice_of(example, list(range(1, len(labels)))))
    names = [name for value, name in sorted(labels.items()) if value != 0]
    keys = (*class_keys(names), *DIFFERENCE_KEYS)
    return Section(title="Cases with the lowest Dice", slices=tuple(slices), keys=keys if slices else ())


def _example(case: Case, pair: Pair, labels: dict[int, str], name: str, dice: float) -> Example:
    """The slice on which label map and prediction disagree most, seen from the patient's feet, anterior at the top."""
    image = read_image(case)
    maps = [
        to_class_index(read_file(path, label=True).array[0], labels, path) for path in (pair.label, pair.prediction)
    ]
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
