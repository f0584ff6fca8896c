"""Scores of predicted label maps, and the folds of a cross-validation, each as one self-contained HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from hasten.evaluation.crossval import CrossValidation, Trials
from hasten.evaluation.evaluate import Evaluation, Unit
from hasten.evaluation.examples import Example, examples_of
from hasten.observe.progress import SHOWN
from hasten.observe.values import mapping, number
from hasten.prediction.outputs import PREDICTION_JSON, read_settings
from hasten.prediction.postprocess import Cleaning
from hasten.report import words
from hasten.report.figures import color, strip_chart
from hasten.report.html import write_page
from hasten.report.model import Card, Chart, Key, Page, Section, Table
from hasten.report.slices import slices_section

TITLES = {"dice": "Dice", "iou": "IoU", "hd95": "HD95", "nsd": "NSD"}
_MOST_ROWS = 500
_KIND = "evaluation"


def write_evaluation_page(evaluation: Evaluation, out: Path, *, examples: Sequence[Example] = ()) -> Path:
    """Write the page to the file `out` and return it. Raises ValueError if it cannot be written.

    examples: slices to show.
    """
    others = evaluation.pairs.num_labelled - len(evaluation.cases)
    rest = f"; {others} further labelled {'case has' if others == 1 else 'cases have'} no prediction" if others else ""
    made = read_settings(evaluation.pairs.predictions / PREDICTION_JSON) or {}
    by = f" by {_networks(made)}" if made else ""
    page = Page(
        title=f"{evaluation.pairs.predictions.resolve().name} against {_data_set(evaluation)}",
        kind=_KIND,
        verdict=f"{_count(evaluation)}, mean Dice {text_of(evaluation.mean(), 'dice')}{by}{rest}."
        + (f" {evaluation.training_note}." if evaluation.training_note else ""),
        cards=_mean_cards(evaluation),
        sections=(
            *([_predicted_by(made, evaluation.unit)] if made else []),
            *_sections(evaluation, examples),
        ),
    )
    return write_page(page, out)


def write_trials_page(trials: Trials, out: Path) -> Path:
    """Write the page about a run's validation cases, with its own settings and with others, to the file `out`.

    Raises ValueError if `out` cannot be written.
    """
    own, other = trials.own, trials.other
    evaluation = own.evaluation
    dice = text_of(evaluation.mean(), "dice")
    verdict = f"{_count(evaluation)} of {_data_set(evaluation)}, mean Dice {dice} with the run's own settings"
    cards, comparison = _mean_cards(evaluation), []
    if other is not None:
        better, cases = trials.better()
        tried, gain = text_of(other.evaluation.mean(), "dice"), other.evaluation.mean() - evaluation.mean()
        verdict += f", {tried} with {' '.join(other.overrides)} ({gain:+.4f}); higher in {better} of {cases} cases"
        cards = (
            Card("Mean Dice, own settings", dice, "over cases"),
            Card("Mean Dice, tried settings", tried, "over cases"),
            Card("Gain in mean Dice", f"{gain:+.4f}", f"higher in {better} of {cases} cases"),
            Card("Cost", f"{other.passes / own.passes:.2f}×", "the windows through the network"),
        )
        comparison = [_settings(trials)]
    shown = own if other is None else other
    page = Page(
        title=f"Validation cases of the run {trials.run.resolve().name}{', with other settings' if other else ''}",
        kind=_KIND,
        verdict=f"{verdict}.",
        cards=cards,
        sections=(*comparison, *_sections(shown.evaluation, shown.examples)),
    )
    return write_page(page, out)


def _sections(evaluation: Evaluation, examples: Sequence[Example], *more: Section) -> tuple[Section, ...]:
    """more: stand before the cases."""
    return (
        _classes(evaluation),
        _distribution(evaluation),
        *more,
        slices_section("Cases", examples, evaluation.pairs.class_names, none="No case has a Dice, so none is shown."),
        _cases(evaluation),
    )


def _count(evaluation: Evaluation) -> str:
    count = len(evaluation.cases)
    return f"{count} case{'' if count == 1 else 's'}"


def _data_set(evaluation: Evaluation) -> str:
    """The name of what has the label maps: that of its folder, where it is a dataset.json or another file."""
    path = evaluation.pairs.source.resolve()
    return path.parent.name if path.is_file() else path.name


def _mean_cards(evaluation: Evaluation) -> tuple[Card, ...]:
    return tuple(
        Card(f"Mean {measure_title(evaluation, measure)}", text_of(evaluation.mean(measure), measure), "over cases")
        for measure in evaluation.measures
    )


def _networks(made: Mapping[str, Any]) -> str:
    """Which networks made the label maps. made: the content of prediction.json."""
    count = len(mapping(made["networks"]))
    return "one network" if count == 1 else f"the mean of {count} networks"


def _predicted_by(made: Mapping[str, Any], unit: Unit) -> Section:
    """The networks that made the label maps, and their settings. made: the content of prediction.json."""
    networks = list(mapping(made["networks"]))
    rows = [("Network" if len(networks) == 1 else f"Network {k}", path) for k, path in enumerate(networks, 1)]
    rows += [(words.title(name), words.plain(value)) for name, value in mapping(made["infer"]).items()]
    cleanings = [Cleaning(**each) for each in mapping(made["postprocessing"]).values()]
    cleaned = "; ".join(f"{each.name}: {each.text(unit)}" for each in cleanings)
    rows.append(("Post-processing", cleaned or "none"))
    table = Table(("What", "Value"), tuple(rows))
    text = f"By {_networks(made)}, with hasten predict."
    return Section("How they were predicted", text=text, table=table, folded="Networks and settings")


def _settings(trials: Trials) -> Section:
    assert trials.other is not None
    rows = [
        (f"infer.{name}", words.plain(before), words.plain(after)) for name, (before, after) in trials.changes().items()
    ]
    rows.append(("Windows through the network", f"{trials.own.passes:,}", f"{trials.other.passes:,}"))
    return Section("Settings that differ", table=Table(("Setting", "Own", "Tried"), tuple(rows)))


def _distribution(evaluation: Evaluation) -> Section:
    """How the Dice of each class and region is spread over the cases."""
    groups, keys = [], []
    for place, name in enumerate(evaluation.names):
        values = [value for value in evaluation.values(name, "dice") if math.isfinite(value)]
        if values:
            low, mid, high = (text_of(of(values), "dice") for of in (min, median, max))
            groups.append((place + 1, color(place), values))
            keys.append(Key(f"{place + 1}. {name}", color(place), f"median {mid}, {low} to {high}"))
    if not groups:
        return Section("Distribution of Dice", note="No case has a score.")
    svg = strip_chart(groups, x_label="Dice", describe="Dice of the cases, by class")
    note = "A dot is a case, a bar the middle half of the cases, and its line the median."
    return Section("Distribution of Dice", charts=(Chart(svg, "", tuple(keys), note),))


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
    if measure == "hd95":
        return f"{value:.2f}" if value >= 0.1 or value == 0 else f"{value:.3g}"
    return f"{value:.3f}"


def classes_table(evaluation: Evaluation) -> Table:
    """A row for each class and region: mean and standard deviation over cases, and how many count; then the means."""
    rows = []
    last = [evaluation.summary(name, "hd95").infinite for name in evaluation.names] if evaluation.surfaces else []
    for place, name in enumerate(evaluation.names):
        summaries = {measure: evaluation.summary(name, measure) for measure in evaluation.measures}
        first = summaries["dice"]
        texts = [with_spread(each.mean, each.std, measure) for measure, each in summaries.items()]
        infinite = [str(last[place])] if any(last) else []
        rows.append((name, *texts, str(first.count), str(first.empty), *infinite))
    titles = [measure_title(evaluation, measure) for measure in evaluation.measures]
    columns = ("Class", *titles, "Cases", "Empty", *(["Infinite HD95"] if any(last) else []))
    means = [text_of(evaluation.mean(measure), measure) for measure in evaluation.measures]
    rows.append(("Mean", *means, str(len(evaluation.cases)), *([""] * (len(columns) - len(means) - 2))))
    return Table(columns, rows=tuple(rows), numeric=tuple(range(1, len(columns))))


def _classes(evaluation: Evaluation) -> Section:
    note = (
        "Mean ± standard deviation over cases. Empty: cases that hold the class neither in the label map nor in the "
        "prediction, which are left out."
    )
    table = classes_table(evaluation)
    if "Infinite HD95" in table.columns:
        note += " Infinite HD95: cases where only one of the two holds it; they are left out of the mean of HD95 alone."
    return Section(title="Classes", table=table, note=note)


def with_spread(mean: float, std: float, measure: str) -> str:
    """`0.912 ± 0.031`."""
    return f"{text_of(mean, measure)} ± {text_of(std, measure)}" if math.isfinite(std) else text_of(mean, measure)


def _cases(evaluation: Evaluation) -> Section:
    """A row for each case and class, the case with the lowest mean Dice first, and those without one last."""
    means = {case: math.inf if math.isnan(mean) else mean for case, mean in evaluation.case_means().items()}
    rows = []
    for score in sorted(evaluation.scores, key=lambda score: (means[score.case], score.case)):
        texts = [text_of(getattr(score, measure), measure) for measure in evaluation.measures]
        rows.append((score.case, score.name, *texts, f"{score.labelled:,}", f"{score.predicted:,}"))
    titles = [measure_title(evaluation, measure) for measure in evaluation.measures]
    note = f"The {_MOST_ROWS} lowest of {len(rows)} rows; evaluation.csv has all." if len(rows) > _MOST_ROWS else ""
    columns = ("Case", "Class", *titles, "Labelled voxels", "Predicted voxels")
    table = Table(columns, rows=tuple(rows[:_MOST_ROWS]), numeric=tuple(range(2, len(columns))))
    return Section("Cases, lowest Dice first", table=table, note=note, folded=_count(evaluation))


_LOWEST = 4
"""Cases with the lowest Dice that are shown, beside the median and the best one."""


def write_crossval_page(crossval: CrossValidation, out: Path) -> Path:
    """Write the page to the file `out` and return it. Raises ValueError for a case that cannot be read."""
    whole = crossval.whole
    cards = []
    for measure in whole.measures:
        over_folds = with_spread(**crossval.over_folds(None, measure), measure=measure)
        mean = text_of(whole.mean(measure), measure)
        cards.append(Card(f"Mean {measure_title(whole, measure)}", mean, f"over cases; over folds {over_folds}"))
    fold_of = {case: fold.number for fold in crossval.folds for case in fold.evaluation.cases}
    examples = [
        replace(example, name=f"{example.name} (fold {fold_of[example.name]})")
        for example in examples_of(whole, lowest=_LOWEST)
    ]
    folds = f"{len(crossval.folds)} fold{'' if len(crossval.folds) == 1 else 's'}"
    unfinished = f"; not finished: fold {', '.join(map(str, crossval.unfinished))}" if crossval.unfinished else ""
    page = Page(
        title=f"Cross-validation {crossval.folder.resolve().name}",
        kind="cross-validation",
        verdict=f"{folds}, {len(whole.cases)} cases, mean Dice {text_of(whole.mean(), 'dice')}{unfinished}.",
        cards=cards,
        sections=(_folds(crossval), *_sections(whole, examples, _cleaning(crossval))),
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
    titles = [measure_title(whole, measure) for measure in whole.measures]
    columns = ("Fold", "Cases", "Best step", "In training", *titles)
    table = Table(columns, rows=tuple(rows), numeric=tuple(range(1, len(columns))))
    note = (
        "Means over a fold's validation cases, on the images' own voxels. In training: the best validation, "
        "which leaves out classes that a label map does not hold."
    )
    return Section(title="Folds", table=table, note=note)


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
