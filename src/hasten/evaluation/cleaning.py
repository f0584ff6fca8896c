"""Choice of the post-processing that improves the validation Dice of all folds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np

from hasten.cases.formats import read_file_header
from hasten.cases.types import spacing_of
from hasten.evaluation.dice import without_ignored
from hasten.evaluation.evaluate import Evaluation, bounding_box, read_pair, score_case, summary_of
from hasten.evaluation.pairs import Pair, Pairs
from hasten.observe.cores import usable_cores
from hasten.prediction.postprocess import Cleaning, Cleanings, postprocessed

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
    both = [dataclasses.replace(kind, fill_holes=fill) for kind, fill in product(kinds, (False, True))]
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
    cleaned = (postprocessed(prediction, candidate, spacing_of(affine)) for candidate in candidates)
    return [_dice_of(*without_ignored(each, label, pairs.ignore), affected) for each in cleaned]


def _dice_of(prediction: np.ndarray, label: np.ndarray, members: Mapping[str, Sequence[int]]) -> Dices:
    spacing = (1.0, 1.0, 1.0)
    return {
        each.name: each.dice for each in score_case("", prediction, label, members, spacing=spacing, surfaces=False)
    }


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
    pairs = dataclasses.replace(
        parts[0],
        pairs=tuple(pair for part in parts for pair in part.pairs),
        predictions=folder,
        num_labelled=sum(part.num_labelled for part in parts),
    )
    surfaces = all(each.surfaces for each in evaluations) and alike
    scores = tuple(score for each in evaluations for score in each.scores)
    return dataclasses.replace(evaluations[0], pairs=pairs, scores=scores, surfaces=surfaces)
