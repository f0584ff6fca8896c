"""Example slices of validation cases: which cases, which slice, and its picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hasten.cases.formats import is_picture, may_lack_position
from hasten.cases.read import read_image
from hasten.cases.types import Case, Shape, is_flat, spacing_of
from hasten.evaluation.dice import without_ignored
from hasten.evaluation.evaluate import Evaluation, read_pair
from hasten.evaluation.pairs import Pair, Pairs
from hasten.prepare.orient import orient, orientation_of
from hasten.prepare.types import Geometry

EXAMPLES = "examples.npz"
"""File of a run with the fields of its examples: `image_0`, `label_0` and so on."""
EXAMPLE_CASES = 3
"""Cases that a run shows: the worst, the median and the best."""
_PLANES = ("axial", "coronal", "sagittal")
"""Planes by the axis (D, H, W) of a RAS-oriented volume that goes across the slices."""
_LOWEST = ("worst", "2nd lowest", "3rd lowest", "4th lowest")
_THICK = 1.5
"""Largest spacing over the next one from which a volume is shown in the plane of its thick slices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One slice of a labelled case, seen from the patient's feet, front or left, with anterior or superior at the top.

    Label map and prediction hold class indices: 0 is the background, and k the k-th of the rising foreground values.
    """

    name: str
    which: str = ""
    """Among the cases that were scored: "worst", "median", "best", or ""."""
    where: str = ""
    """Plane and number of the slice among those of the image file, from 1; empty of a 2-D image."""
    dice: float | None
    """Dice of the whole case."""
    image: np.ndarray
    """(H, W) or (H, W, 3) float32 in 0..1."""
    label: np.ndarray
    """(H, W) uint8."""
    prediction: np.ndarray
    """(H, W) uint8."""
    pixel: tuple[float, float] = (1.0, 1.0)
    """Height and width of a pixel, in mm where the file has a spacing."""


def chosen_cases(dice: Mapping[str, float], *, lowest: int = 1) -> dict[str, str]:
    """Cases to show, with what each is: the `lowest` ones (up to four), the median and the best.

    dice: mean Dice of each case, nan where there is none: it is never shown.
    """
    order = sorted((case for case, value in dice.items() if not math.isnan(value)), key=lambda case: dice[case])
    if len(order) < 2:
        return dict.fromkeys(order, "the only case")
    last = len(order) - 1
    names = dict(enumerate(_LOWEST[:lowest])) | {len(order) // 2: "median", last: "best"}
    return {order[place]: names[place] for place in sorted(names) if place <= last}


def to_example(
    case: Case,
    image: np.ndarray,
    label: np.ndarray,
    prediction: np.ndarray,
    geometry: Geometry,
    *,
    which: str,
    dice: float,
) -> Example:
    """The slice on which label map and prediction differ most; where they agree, the one with the most foreground.

    image: (C, D, H, W), of which the first channel is shown, or the colours of a picture. label, prediction:
    (D, H, W) uint8 class index. geometry: of these arrays.
    """
    affine = geometry.directions()
    permute, flip = orientation_of(affine, "RAS", geometry.shape)
    volume, label, prediction = (orient(array, permute, flip) for array in (image, label, prediction))
    spacing = tuple(spacing_of(affine)[axis] for axis in permute)
    is_volume = not is_flat(geometry.shape)
    # Across thick slices, else from feet to head.
    thickest, second, _ = sorted(spacing, reverse=True)
    axis = spacing.index(thickest) if is_volume and thickest > _THICK * second else 0
    others = tuple(each for each in range(3) if each != axis)
    differing = (label != prediction).sum(others)
    index = int((differing if differing.any() else (label > 0).sum(others)).argmax())
    where = ""
    if is_volume:
        at = label.shape[axis] - 1 - index if flip[axis] else index
        number, count = geometry.source_slice(permute[axis], at)
        plane = "" if may_lack_position(case.image[0]) else f"{_PLANES[axis]} "
        where = f"{plane}slice {number + 1} of {count}"
    colours = len(image) == 3 and len(case.image) == 1 and is_picture(case.image[0])
    turn = (0, 1) if is_volume else ()
    return Example(
        name=case.id,
        which=which,
        where=where,
        dice=dice,
        image=np.flip(_shown(volume[: 3 if colours else 1].take(index, axis + 1)), turn),
        label=np.flip(label.take(index, axis), turn),
        prediction=np.flip(prediction.take(index, axis), turn),
        pixel=(spacing[others[0]], spacing[others[1]]),
    )


def _shown(plane: np.ndarray) -> np.ndarray:
    """A slice (1, H, W) or (3, H, W) between its 1st and 99th percentile, as `Example.image`."""
    plane = np.nan_to_num(plane.astype(np.float32))
    low, high = np.percentile(plane, (1, 99)).tolist()
    scaled = ((plane - low) / max(high - low, 1e-6)).clip(0, 1)
    return scaled[0] if len(scaled) == 1 else np.moveaxis(scaled, 0, -1)


def examples_of(evaluation: Evaluation, *, lowest: int = 1) -> tuple[Example, ...]:
    """A slice of each case that `chosen_cases` names. Raises ValueError for a label map that can't be read."""
    pairs, dice = evaluation.pairs, evaluation.case_means()
    files = {pair.case: pair for pair in pairs.pairs}
    chosen = chosen_cases(dice, lowest=lowest)
    return tuple(_example(files[case], pairs, which, dice[case]) for case, which in chosen.items())


def _example(pair: Pair, pairs: Pairs, which: str, dice: float) -> Example:
    prediction, label, affine = read_pair(pair, pairs)
    case = Case(id=pair.case, image=pair.image or (pair.label,), label=pair.label)
    depth, height, width = label.shape
    shape = (depth, height, width)
    maps, values = without_ignored(prediction, label, pairs.ignore), sorted(pairs.labels)
    predicted, labelled = (np.searchsorted(values, each).astype(np.uint8) for each in maps)
    geometry = Geometry.of_file(shape, affine)
    image = _image(case, shape) if pair.image else None
    shown = np.zeros((1, *shape), np.uint8) if image is None else image
    example = to_example(case, shown, labelled, predicted, geometry, which=which, dice=dice)
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
