"""The folds of a cross-validation as one self-contained HTML page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hasten.evaluation.crossval import CrossValidation
from hasten.evaluation.pictures import examples_of
from hasten.observe.progress import SHOWN
from hasten.observe.values import mapping, number
from hasten.report import words
from hasten.report.evaluation_page import cases_section, distribution, measure_title, pictures, text_of, with_spread
from hasten.report.html import write_page
from hasten.report.model import Card, Page, Section, Table

_LOWEST = 4
"""Cases with the lowest Dice that are shown, beside the median and the best one."""


def write_crossval_page(crossval: CrossValidation, out: Path) -> Path:
    """Write the page to the file `out` and return it. Raises ValueError for a case that cannot be read."""
    whole = crossval.whole
    cards = []
    for measure in whole.measures:
        over_folds = with_spread(*crossval.over_folds(None, measure), measure)
        mean = text_of(whole.mean(measure), measure)
        cards.append(Card(f"Mean {measure_title(whole, measure)}", mean, f"over cases; over folds {over_folds}"))
    folds = f"{len(crossval.folds)} fold{'' if len(crossval.folds) == 1 else 's'}"
    unfinished = f"; not finished: fold {', '.join(map(str, crossval.unfinished))}" if crossval.unfinished else ""
    page = Page(
        title=f"Cross-validation {crossval.folder.resolve().name}",
        kind="cross-validation",
        verdict=f"{folds}, {len(whole.cases)} cases, mean Dice {text_of(whole.mean(), 'dice')}{unfinished}.",
        cards=cards,
        sections=(
            _folds(crossval),
            _classes(crossval),
            distribution(whole, "dice"),
            _cleaning(crossval),
            _pictures(crossval),
            cases_section(whole),
        ),
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
        "Means over a fold's validation cases, on the images' own voxels. In training: the best validation, "
        "which leaves out classes that a label map does not hold."
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


def _pictures(crossval: CrossValidation) -> Section:
    pairs = crossval.pairs
    folds = {case: fold.number for fold in crossval.folds for case in fold.evaluation.cases}
    examples = [
        replace(example, name=f"{example.name} (fold {folds[example.name]})")
        for example in examples_of(crossval.whole, pairs, lowest=_LOWEST)
    ]
    return pictures(examples, pairs.class_names)
