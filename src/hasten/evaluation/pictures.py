"""Example slices of scored cases, read from their files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hasten.cases.read import read_image
from hasten.cases.types import Case, Shape
from hasten.evaluation.evaluate import Evaluation, read_label_map, without_ignored
from hasten.evaluation.examples import Example, chosen_cases, example_of
from hasten.evaluation.pairs import Pair, Pairs
from hasten.prepare.types import Geometry


def examples_of(evaluation: Evaluation, pairs: Pairs, *, lowest: int = 1) -> tuple[Example, ...]:
    """A slice of each case that `chosen_cases` names. Raises ValueError for a label map that can't be read."""
    dice, files = evaluation.case_means(), {pair.case: pair for pair in pairs.pairs}
    chosen = chosen_cases(dice, lowest=lowest)
    return tuple(_example(files[case], pairs, which, dice[case]) for case, which in chosen.items())


def _example(pair: Pair, pairs: Pairs, which: str, dice: float) -> Example:
    label = read_label_map(pair.label, pairs.labels, pairs.ignore)
    prediction = read_label_map(pair.prediction, pairs.labels)
    case = Case(id=pair.case, image=pair.image or (pair.label,), label=pair.label)
    depth, height, width = label.array.shape[1:]
    shape = (depth, height, width)
    maps = without_ignored(prediction.array[0], label.array[0], pairs.ignore)
    values = sorted(pairs.labels)
    predicted, labelled = (np.searchsorted(values, each).astype(np.uint8) for each in maps)
    geometry = Geometry.of_file(shape, label.affine)
    image = _image(case, shape) if pair.image else None
    shown = np.zeros((1, *shape), np.uint8) if image is None else image
    example = example_of(case, shown, labelled, predicted, geometry, which=which, dice=dice)
    if image is None:
        example = replace(example, where=", ".join(filter(None, (example.where, "its image is not known"))))
    return example


def _image(case: Case, shape: Shape) -> np.ndarray | None:
    """(C, D, H, W) of the case; None where it can't be read or lies on another grid than the label map."""
    try:
        image = read_image(case).array
    except (ValueError, OSError):
        return None
    return image if image.shape[1:] == shape else None
