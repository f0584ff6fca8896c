"""The validation cases of runs: predicted and scored, and what settings and post-processing improve their scores."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from hasten.cache.fingerprint import read_cases
from hasten.cases.formats import read_file_header
from hasten.cases.types import spacing_of
from hasten.checkpoint.weights import model_file, read_model
from hasten.config.load import load_run
from hasten.evaluation.dice import without_ignored
from hasten.evaluation.evaluate import (
    EVALUATION_JSON,
    Evaluation,
    bounding_box,
    evaluate_pairs,
    read_evaluation,
    read_pair,
    score_case,
    summary_of,
    write_evaluation,
)
from hasten.evaluation.examples import Example, examples_of
from hasten.evaluation.pairs import Pair, Pairs
from hasten.observe.cores import usable_cores
from hasten.observe.folds import (
    CV_JSON,
    CV_YAML,
    VALIDATION,
    finished_folds,
    fold_runs,
    is_cross_validation,
    is_finished,
    refuse_cross_validation,
)
from hasten.observe.rundir import RUN_YAML, SUMMARY_JSON, write_json
from hasten.prediction.ensemble import Member, with_infer
from hasten.prediction.model import load_members
from hasten.prediction.outputs import label_names, make_folder
from hasten.prediction.postprocess import Cleaning, Cleanings, postprocessed, write_cleanings
from hasten.prediction.predict import Tick, predict_cases

SHARES = (0.01, 0.03, 0.1)
"""Smallest sizes of a component that are tried, as shares of the median labelled volume of a class."""
T = TypeVar("T")
Dices = dict[str, float]
"""Dice of a case by the name of the class or region."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The cleanings that improve the scores, and the mean Dice of each class and region without and with them."""

    cleanings: dict[int, Cleaning]
    before: Dices
    after: Dices


def choose_cleanings(evaluation: Evaluation) -> Chosen:
    """Choose, for each class, the cleaning with the highest mean Dice over the cases, if any is better than none.

    As nnU-Net does, one is taken only where no class or region gets worse. Raises ValueError for a file that cannot be
    read.
    """
    pairs = evaluation.pairs
    before = {name: evaluation.summary(name, "dice").mean for name in evaluation.names}
    cleanings: dict[int, Cleaning] = {}
    for value, name in pairs.labels.items():
        if value == 0:
            continue
        candidates = _candidates(name, _median_volume(evaluation, name))
        affected = {other: members for other, members in pairs.members.items() if value in members}
        dices = partial(_dices, pairs=pairs, candidates=[{value: each} for each in candidates], affected=affected)
        case_dices = _each(pairs.pairs, dices)
        means = [_means([case[number] for case in case_dices]) for number in range(len(candidates))]
        allowed = [pair for pair in zip(means, candidates, strict=True) if not _worse(pair[0], before)]
        best = max(allowed, key=lambda pair: _comparable(pair[0][name]), default=None)
        if best is not None and _comparable(best[0][name]) > _comparable(before[name]):
            cleanings[value] = best[1]
    after = before
    if cleanings:
        dices = partial(_dices, pairs=pairs, candidates=[cleanings], affected=pairs.members)
        after = _means([case[0] for case in _each(pairs.pairs, dices)])
    # Each was evaluated separately; holes that two classes enclose are filled by only one of them.
    if _worse(after, before):
        cleanings, after = {}, before
    return Chosen(cleanings=cleanings, before=before, after=after)


def _candidates(name: str, volume_mm3: float) -> list[Cleaning]:
    sizes = [float(f"{share * volume_mm3:.3g}") for share in SHARES] if volume_mm3 > 0 else []
    kinds = [
        Cleaning(name=name, keep_largest=True),
        *(Cleaning(name=name, min_volume_mm3=size) for size in sizes),
        Cleaning(name=name),
    ]
    both = [replace(kind, fill_holes=fill) for kind, fill in product(kinds, (False, True))]
    return [kind for kind in both if kind != Cleaning(name=name)]


def _median_volume(evaluation: Evaluation, name: str) -> float:
    """Median volume of the labelled voxels of a class over the cases that have any, in mm3; 0 where none has."""
    labelled = {score.case: score.labelled for score in evaluation.scores if score.name == name}
    volumes = [
        labelled[pair.case] * prod(spacing_of(read_file_header(pair.label)[2]))
        for pair in evaluation.pairs.pairs
        if labelled.get(pair.case)
    ]
    return median(volumes) if volumes else 0.0


def _dices(
    pair: Pair, *, pairs: Pairs, candidates: Sequence[Cleanings], affected: Mapping[str, Sequence[int]]
) -> list[Dices]:
    """Dice of `affected`, the classes and regions that cleanings concern, with each of the candidates in turn."""
    prediction, label, affine = read_pair(pair, pairs)
    label_values = list({value for members in affected.values() for value in members})
    box = bounding_box(np.isin(prediction, label_values) | np.isin(label, label_values))  # all that counts lies in it
    prediction, label = prediction[box], label[box]
    dices, spacing = list[Dices](), spacing_of(affine)
    for candidate in candidates:
        maps = without_ignored(postprocessed(prediction, candidate, spacing), label, pairs.ignore)
        scores = score_case("", *maps, affected, spacing=spacing, surfaces=False)
        dices.append({each.name: each.dice for each in scores})
    return dices


def _each(pairs: Sequence[Pair], do: Callable[[Pair], T]) -> list[T]:
    with ThreadPoolExecutor(usable_cores()) as pool:
        return list(pool.map(do, pairs))


def _means(cases: Sequence[Dices]) -> Dices:
    return {name: summary_of([case[name] for case in cases]).mean for name in (cases[0] if cases else {})}


def _comparable(value: float) -> float:
    return -1.0 if math.isnan(value) else value


def _worse(means: Dices, before: Dices) -> bool:
    return any(_comparable(mean) < _comparable(before[name]) for name, mean in means.items())


def joined(evaluations: Sequence[Evaluation], folder: Path) -> Evaluation:
    """The scores of several folds, which share classes and regions; without surfaces if units or tolerances differ."""
    parts, alike = [each.pairs for each in evaluations], len({(each.unit, each.tolerance) for each in evaluations}) == 1
    pairs = replace(
        parts[0],
        pairs=tuple(pair for part in parts for pair in part.pairs),
        predictions=folder,
        num_labelled=sum(part.num_labelled for part in parts),
    )
    surfaces = all(each.surfaces for each in evaluations) and alike
    scores = tuple(score for each in evaluations for score in each.scores)
    return replace(evaluations[0], pairs=pairs, scores=scores, surfaces=surfaces)


def validation_pairs(run: Path, folder: Path) -> Pairs:
    """The validation cases of a run, whose label maps are in `folder`. Raises ValueError."""
    case_set, _, validation = read_cases(load_run(run / RUN_YAML))
    pairs = (
        Pair(case=case.id, prediction=folder / name, label=case.label, image=case.image)
        for case, name in zip(validation, label_names(validation), strict=True)
        if case.label is not None
    )
    meaning = {name: getattr(case_set, name) for name in ("source", "labels", "regions", "ignore")}
    return Pairs(pairs=tuple(pairs), predictions=folder, num_labelled=len(validation), **meaning)


def predict_validation(run: Path) -> None:
    """Write the label map of each validation case, by the best weights, into `run`/validation. Raises ValueError."""
    config = load_run(run / RUN_YAML)
    _, _, validation = read_cases(config)
    # The run has just trained a user-defined network with this code, so it is trusted.
    members = [Member(model_file(run), read_model(run))]
    options: dict[str, Any] = {"overwrite": True, "trust_changed_code": True}
    predict_cases(members, validation, run / VALIDATION, device=config.train.device, **options)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """One finished fold."""

    number: int
    run: Path
    summary: dict[str, Any]
    """Content of summary.json."""
    evaluation: Evaluation
    """Scores of its validation cases on the images' own voxels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossValidation:
    """All finished folds together."""

    folder: Path
    folds: tuple[Fold, ...]
    unfinished: tuple[int, ...]
    """Folds that were started and are not finished."""
    whole: Evaluation
    """The scores of all folds' validation cases."""
    chosen: Chosen

    def over_folds(self, name: str | None, measure: str) -> dict[str, float]:
        """Mean and standard deviation over the folds of a class's mean, or for None of the mean over cases."""
        values = [
            fold.evaluation.mean(measure) if name is None else fold.evaluation.summary(name, measure).mean
            for fold in self.folds
        ]
        summary = summary_of(values)
        return {"mean": summary.mean, "std": summary.std}

    def to_dict(self) -> dict[str, Any]:
        """The content of cv.json."""
        whole, measures = self.whole, self.whole.measures
        return {
            "folds": {
                str(fold.number): {
                    "run": fold.run.name,
                    "status": fold.summary.get("status"),
                    "best": fold.summary.get("best"),
                    "cases": len(fold.evaluation.cases),
                    "mean": {measure: fold.evaluation.mean(measure) for measure in measures},
                    "classes": {
                        name: {measure: fold.evaluation.summary(name, measure).mean for measure in measures}
                        for name in whole.names
                    },
                }
                for fold in self.folds
            },
            "unfinished": list(self.unfinished),
            "unit": whole.unit,
            "mean_over": whole.pairs.main,
            "over_folds": {measure: self.over_folds(None, measure) for measure in measures},
            "over_cases": {measure: whole.mean(measure) for measure in measures},
            "classes": {
                name: {
                    measure: {
                        "over_cases": asdict(whole.summary(name, measure)),
                        "over_folds": self.over_folds(name, measure),
                    }
                    for measure in measures
                }
                for name in whole.names
            },
            "cases": {
                case: {"fold": fold.number, "dice": dice}
                for fold in self.folds
                for case, dice in fold.evaluation.case_means().items()
            },
            "postprocessing": {
                "classes": {str(value): asdict(cleaning) for value, cleaning in self.chosen.cleanings.items()},
                "dice_before": self.chosen.before,
                "dice_after": self.chosen.after,
            },
        }


def score_fold(run: Path) -> Evaluation:
    """The scores of a finished run's validation cases on the images' own voxels, surfaces too; kept in the run.

    What is missing or older than the weights is predicted and scored. Raises ValueError for an unreadable file.
    """
    folder = run / VALIDATION
    evaluation = read_evaluation(pairs := validation_pairs(run, folder))
    if evaluation is None or (folder / EVALUATION_JSON).stat().st_mtime < model_file(run).stat().st_mtime:
        predict_validation(run)
    elif evaluation.surfaces:
        return evaluation
    evaluation = evaluate_pairs(pairs)
    write_evaluation(evaluation, folder)
    return evaluation


def summarise(folder: str | Path) -> CrossValidation:
    """Put the finished folds of a cross-validation together; write cv.json and postprocessing.yaml into `folder`.

    A postprocessing.yaml that somebody has edited since is kept. Raises ValueError for a folder that is no
    cross-validation, or without a finished fold.
    """
    folder = Path(folder)
    if not is_cross_validation(folder):
        raise ValueError(
            f"{folder}: holds no cross-validation ({CV_YAML} is missing); `hasten train --folds` makes one"
        )
    runs = {run: number for number, run in fold_runs(folder).items()}
    folds = tuple(
        Fold(
            number=runs[run], run=run, summary=json.loads((run / SUMMARY_JSON).read_bytes()), evaluation=score_fold(run)
        )
        for run in finished_folds(folder)
    )
    whole = joined([fold.evaluation for fold in folds], folder)
    unfinished = tuple(number for run, number in runs.items() if not is_finished(run))
    chosen = choose_cleanings(whole)
    result = CrossValidation(folder=folder, folds=folds, unfinished=unfinished, whole=whole, chosen=chosen)
    write_cleanings(folder, result.chosen.cleanings)
    write_json(folder / CV_JSON, result.to_dict())
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingsTrial:
    """The validation cases with one choice of settings."""

    overrides: tuple[str, ...]
    """Changed settings of `infer`; empty for the run's own."""
    settings: Mapping[str, Any]
    """All settings, as the section `infer` has them."""
    evaluation: Evaluation
    examples: tuple[Example, ...]
    passes: int
    """Number of windows, mirrored ones included, that went through the network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trials:
    """A run with its own settings, and with others."""

    run: Path
    own: SettingsTrial
    other: SettingsTrial | None
    chosen: Chosen | None
    """Post-processing of the label maps of `own`."""

    def changes(self) -> dict[str, tuple[Any, Any]]:
        """The settings that were tried beside the run's own: their names to both values."""
        assert self.other is not None
        names = dict.fromkeys(text.partition("=")[0].strip().partition(".")[2] for text in self.other.overrides)
        return {name: (self.own.settings.get(name), self.other.settings[name]) for name in names}

    def better(self) -> tuple[int, int]:
        """Cases whose mean Dice is higher with the other settings, and cases in all."""
        assert self.other is not None
        before, after = self.own.evaluation.case_means(), self.other.evaluation.case_means()
        return sum(after[case] > dice for case, dice in before.items()), len(before)


def evaluate_run(
    run: str | Path,
    *,
    overrides: Sequence[str] = (),
    postprocessing: bool = False,
    surfaces: bool = True,
    device: str | None = None,
    out: Path | None = None,
    tick: Tick | None = None,
) -> Trials:
    """Scores of a run's validation cases on the images' own voxels, by its best weights.

    overrides: settings of `infer` that are tried beside the run's own, such as "infer.flip_axes=[0,1,2]".
    postprocessing: choose what is done to label maps by these cases, as a cross-validation does, and write it into the
    run's postprocessing.yaml, which `predict` applies. device: None takes that of the run. out: folder for
    the label maps meanwhile, where that of the run can't be written. tick: as for `predict`. Raises ValueError.
    """
    run = Path(run)
    refuse_cross_validation(run)
    if not (run / RUN_YAML).is_file():
        raise ValueError(f"{run}: holds no run ({RUN_YAML} is missing); name the folder of a training run, or LABELS")
    members = [Member(model_file(run), read_model(run))]
    changed = with_infer(members, overrides)
    if not validation_pairs(run, run).pairs:
        raise ValueError(f"{run}: has no labelled validation cases; score other label maps with LABELS")
    make_folder(out or run)
    with tempfile.TemporaryDirectory(dir=out or run, prefix=".evaluate") as scratch:
        trial = partial(_trial, run, surfaces=surfaces, device=device, tick=tick)
        own = trial(members, (), Path(scratch) / "own")
        chosen = choose_cleanings(own.evaluation) if postprocessing else None
        other = trial(changed, tuple(overrides), Path(scratch) / "other") if overrides else None
    if chosen is not None:
        write_cleanings(run, chosen.cleanings)
    return Trials(run=run, own=own, other=other, chosen=chosen)


def _trial(
    run: Path,
    members: Sequence[Member],
    overrides: tuple[str, ...],
    out: Path,
    *,
    surfaces: bool,
    device: str | None,
    tick: Tick | None,
) -> SettingsTrial:
    config, pairs = load_run(run / RUN_YAML), validation_pairs(run, out)
    labelled = [case for case in read_cases(config)[2] if case.label is not None]
    model = load_members(members, device=device or config.train.device)
    counts: list[int] = []
    model.network.register_forward_pre_hook(lambda _, inputs: counts.append(len(inputs[0])))
    predict_cases(members, labelled, out, model=model, tick=tick)
    evaluation = evaluate_pairs(replace(pairs, predictions=run), surfaces=surfaces)
    return SettingsTrial(
        overrides=overrides,
        settings=members[0].content["config"]["infer"],
        evaluation=evaluation,
        examples=examples_of(evaluation),
        passes=sum(counts),
    )
