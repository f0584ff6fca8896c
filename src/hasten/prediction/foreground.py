"""Warnings about rare classes, and about predictions whose foreground or voxel spacing training cases did not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from hasten.cache.arena import Arena
from hasten.cases.labels import IGNORED
from hasten.cases.types import Case, CaseSet, spacing_of
from hasten.config.patterns import first_few
from hasten.config.schema import Spacing, Triple
from hasten.prepare.orient import orientation_of
from hasten.prepare.types import Geometry

_RARE = 1e-5
"""Share of the labelled voxels below which a class can be neither learned nor scored."""
_FEWEST_CASES = 2
"""A class in fewer cases is missing from the training cases or from the validation cases."""
_SPACING_TIMES = 2.0
"""A spacing this many times larger than in any training image, or smaller, shows other things in a window."""
_TIMES = 3.0
"""A prediction that is this many times larger than any training case, or smaller, is no anatomy of that kind."""


def check_labelled(
    case_set: CaseSet, arena: Arena, train: Sequence[Case], validation: Sequence[Case]
) -> tuple[str, ...]:
    """Warnings about classes in fewer than two of the prepared cases or with next to no voxels in them, and about cases
    that are ignored as a whole.

    Raises ValueError where no training case, or no validation case, has a labelled voxel.
    """
    ignored = "" if case_set.ignore is None else f" and what is ignored (value {case_set.ignore})"
    voxels = dict(zip(arena.ids, arena.num_voxels, strict=bool(arena.num_voxels)))
    for part, cases, remedy in (
        ("training", train, "so nothing can be learned; check that labels and images are not mixed up"),
        ("validation", validation, "so no Dice can be computed; change data.split so that labelled cases are held out"),
    ):
        available = [case for case in cases if case.id in voxels]
        if available and not any(any(voxels[case.id]) for case in available):
            raise ValueError(
                f"{case_set.source}: the label maps of all {len(available)} {part} cases "
                f"({first_few(c.id for c in available)}) hold only the background "
                f"(value {min(case_set.labels)}){ignored} and none of the declared "
                f"classes ({first_few(_classes(case_set))}), {remedy}"
            )
    if not all(case.id in voxels for case in train):
        return ()  # they are in other processes
    few, rare = list[str](), list[str]()
    labelled = sum(map(sum, arena.num_voxels))
    for name, column in zip(_classes(case_set), zip(*arena.num_voxels, strict=True), strict=True):
        present = sum(map(bool, column))
        if present < _FEWEST_CASES or sum(column) < _RARE * labelled:
            lines = few if present < _FEWEST_CASES else rare
            lines.append(f"{name}: {sum(column)} in {present} case{'s' * (present != 1)}")
    kinds = {f"in fewer than {_FEWEST_CASES} cases": few, "have next to no voxels": rare}
    messages = tuple(
        f"{case_set.name}: classes {what}, too few to learn and to score: {first_few(lines)} (voxels, of {labelled} "
        f"labelled ones in {len(arena.ids)} cases); add cases, or correct the label maps or the declared labels"
        for what, lines in kinds.items()
        if lines
    )
    # Where a class is annotated, not all is ignored; so the label maps of the others alone are read.
    used = arena.index(tuple(case.id for case in (*train, *validation))) if case_set.ignore is not None else ()
    bare = [case for case in used if not any(arena.num_voxels[case])]
    empty = [arena.ids[case] for case in bare if bool((arena.label(case) == IGNORED).all())]
    if empty:
        messages += (
            f"{case_set.name}: {len(empty)} cases have only ignored voxels (value {case_set.ignore}), from which "
            f"nothing is learned: {first_few(empty)}; annotate a part of them, or remove them",
        )
    return messages


def training_range(arena: Arena, train: Sequence[Case], dims: int) -> dict[str, float]:
    """Smallest, median and largest foreground of the training cases, as `foreground_size` gives it; {} if unknown.

    Not to be called where a part of the voxels is not annotated.
    """
    trained = {case.id for case in train}
    rows = zip(arena.ids, arena.num_voxels, arena.geometry, strict=bool(arena.num_voxels))
    sizes = [
        foreground_size(sum(voxels), geometry.shape, geometry, dims)
        for name, voxels, geometry in rows
        if name in trained
    ]
    return {"smallest": min(sizes), "median": median(sizes), "largest": max(sizes)} if sizes else {}


def foreground_size(voxels: int, shape: Triple, geometry: Geometry, dims: int) -> float:
    """Size of `voxels` labelled voxels: in ml in 3-D; in 2-D, where the scale is seldom known, as a share of the image.

    shape: of the grid on which they are counted, geometry.shape or geometry.crop_shape.
    """
    if dims == 2:
        return voxels / math.prod(shape)
    voxel = math.prod(geometry.spacing) * math.prod(geometry.crop_shape) / math.prod(shape)
    return voxels * voxel / 1000


def size_warning(size: float, trained: dict[str, float], dims: int) -> str | None:
    """Why a prediction of this foreground is unlikely to be right, after training cases of that range."""
    if not trained or trained["smallest"] / _TIMES <= size <= trained["largest"] * _TIMES:
        return None
    if dims == 2:
        texts = [f"{value:.3%}" for value in (size, *trained.values())]
        what, why = "of the pixels are foreground", "magnification, stain or channels"
    else:
        texts = [f"{value:.3g} ml" for value in (size, *trained.values())]
        what, why = "of foreground are predicted", "field of view, modality, orientation or voxel spacing in the header"
    return (
        f"{texts[0]} {what}, but the training cases have {texts[1]} to {texts[3]} (median {texts[2]}); check that this "
        f"image is like them: another {why} leads to that"
    )


def _classes(case_set: CaseSet) -> list[str]:
    return [f"{name} (value {value})" for value, name in sorted(case_set.labels.items())][1:]


def training_spacing(spacings: Sequence[Spacing]) -> dict[str, list[float]]:
    """Smallest, median and largest spacing (D, H, W) of the cases, turned to RAS, in mm."""
    columns = list(zip(*spacings, strict=True))
    return {
        name: [float(of(column)) for column in columns]
        for name, of in (("smallest", min), ("median", median), ("largest", max))
    }


def spacing_warning(geometry: Geometry, trained: dict[str, list[float]]) -> str | None:
    """Why an image is unlikely to be segmented well, after training cases as `training_spacing` gives them."""
    if not trained:
        return None
    affine = np.array(geometry.source_affine)
    permute, _ = orientation_of(affine, "RAS", geometry.source_shape)
    spacing = spacing_of(affine)
    sizes = [(spacing[axis], geometry.source_shape[axis]) for axis in permute]
    far = any(
        side > 1 and not low / _SPACING_TIMES <= mm <= high * _SPACING_TIMES
        for (mm, side), low, high in zip(sizes, trained["smallest"], trained["largest"], strict=True)
    )
    if not far:
        return None
    shown, smallest, middle, largest = (
        " x ".join(f"{mm:.3g}" for mm in row) for row in ([mm for mm, _ in sizes], *trained.values())
    )
    return (
        f"its voxels are {shown} mm (D, H, W), but those of the training images are {smallest} to {largest} mm "
        f"(median {middle}); check the spacing in the header: the network has not learned images of this resolution"
    )
