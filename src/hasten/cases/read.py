"""Reads a case: joins its channels, checks its label against the image and maps it to class indices."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from hasten.cases.formats import lacks_position, read_file, read_file_header
from hasten.cases.labels import read_label_values, to_class_index
from hasten.cases.types import Case, CaseSet, Shape, Volume
from hasten.config.patterns import first_few

log = logging.getLogger(__name__)

_SAME, _FAR = 0.01, 0.25
"""Distances of corners, in voxels: up to which grids count as one, as tools round affines differently, and beyond which
they are refused."""
_REMEDY = "resample {} onto that grid, or, if the voxels do correspond, copy the affine over"


def read_image(case: Case) -> Volume:
    """All channels of a case, (C, D, H, W). Raises ValueError if its files disagree or hold NaN or infinite voxels."""
    volumes = []
    for path in case.image:
        volume = read_file(path)
        check_finite(volume.array, path)
        volumes.append(volume)
    first = volumes[0]
    for path, volume in zip(case.image[1:], volumes[1:], strict=True):
        _check_grid(volume, path, first, case.image[0])
    if len(volumes) == 1:
        return first
    return Volume(np.concatenate([volume.array for volume in volumes]), first.affine)


def read_label(case: Case, labels: dict[int, str], image: Volume, ignore: int | None = None) -> np.ndarray:
    """The label map of a case as class indices, (D, H, W) uint8: positions in the sorted label values, background 0.

    `image` is the case's image, whose grid the label must share. Voxels of the label value `ignore` are IGNORED. May be
    read-only.
    Raises ValueError for a label on another grid, values that are not declared and values that are no integers.
    """
    assert case.label is not None
    volume = read_label_values(case.label, labels, ignore)
    if volume.array.shape[0] != 1:
        raise ValueError(
            f"{case.label}: has {volume.array.shape[0]} channels; store the label map as one channel of label values."
        )
    _check_grid(volume, case.label, image, case.image[0])
    return to_class_index(volume.array[0], labels, case.label, ignore)


def _check_grid(volume: Volume, path: Path, reference: Volume, reference_path: Path) -> None:
    shape, wanted = volume.array.shape[1:], reference.array.shape[1:]
    if shape != wanted:
        raise ValueError(
            f"{path}: its shape {shape} differs from {wanted} of {reference_path} (D, H, W); resample it onto that "
            "grid, or correct the pairing of the files."
        )
    check_affine(volume.affine, path, reference.affine, reference_path, wanted)


def check_affine(
    affine: np.ndarray, path: Path, reference: np.ndarray, reference_path: Path, shape: Sequence[int]
) -> float:
    """`corner_distance` of affines (4, 4), or 0 where rounding explains it. Raises ValueError if they do not match."""
    distance = corner_distance(affine, path, reference, reference_path, shape)
    if distance > _FAR:
        raise ValueError(
            f"{path}: its affine differs from that of {reference_path} by up to {distance:.3g} voxels at a corner; "
            f"{_REMEDY.format('it')}."
        )
    return distance if distance > _SAME else 0.0


def corner_distance(
    affine: np.ndarray, path: Path, reference: np.ndarray, reference_path: Path, shape: Sequence[int]
) -> float:
    """How far apart the corners of two grids of one shape (D, H, W) are at most, in voxels of the reference.

    affine, reference: (4, 4) of two files. 0 if one has no position, infinite if an affine holds no numbers.
    """
    for each, file in ((affine, path), (reference, reference_path)):
        if lacks_position(file, each):
            return 0.0
    difference = (affine - reference)[:3]
    if not np.isfinite(difference).all():
        return float("inf")
    corners = np.array([[*corner, 1.0] for corner in product(*((-0.5, side - 0.5) for side in reversed(shape)))])
    return float(np.linalg.norm(np.linalg.pinv(reference[:3, :3]) @ difference @ corners.T, axis=0).max())


def misplaced_files(case: Case, header: tuple[Shape, int, np.ndarray]) -> dict[Path, float]:
    """Files of channels and the label that lie beside the first image of a case, by their headers, in voxels.

    header: of that image, with its affine (4, 4); where it has no position, no other file is opened. Files of another
    shape are left to the reading. Raises ValueError.
    """
    shape, _, reference = header
    first, *others = case.image if case.label is None else (*case.image, case.label)
    beside: dict[Path, float] = {}
    for path in () if lacks_position(first, reference) else others:
        other_shape, _, affine = read_file_header(path)
        distance = corner_distance(affine, path, reference, first, shape) if other_shape == shape else 0.0
        if distance > _SAME:
            beside[path] = distance
    return beside


def refuse_misplaced(beside: Mapping[Path, float], source: Path) -> None:
    """Raise ValueError for `misplaced_files` that are too far off, naming the first few."""
    far = [f"{path} by {distance:.3g}" for path, distance in beside.items() if distance > _FAR]
    if far:
        raise ValueError(
            f"{source}: the affine of {len(far)} file{' differs' if len(far) == 1 else 's differ'} from that of the "
            f"first image of the case, in voxels at a corner: {first_few(far)}; {_REMEDY.format('them')}."
        )


def warn_misplaced(beside: Mapping[Path, float], what: str, reference: str) -> None:
    """Log `misplaced_files`, which are `what`, and how far they lie beside their `reference`; nothing without any."""
    if beside:
        farthest = f"those of {reference}, by up to {max(beside.values()):.2g} voxels"
        log.warning("the corners of %d %s lie beside %s: %s", len(beside), what, farthest, first_few(beside))


def check_num_channels(count: int, case: Case, case_set: CaseSet) -> None:
    """Raise ValueError if a case has another number of channels than its set declares."""
    if count != len(case_set.channels):
        raise ValueError(
            f"{case.image[0]}: case {case.id} has {count} channels, but {case_set.source} declares "
            f"{len(case_set.channels)} ({', '.join(case_set.channels)}); give every case the same channels"
        )


def check_finite(array: np.ndarray, where: object) -> None:
    """Raise ValueError, beginning with `where`, for NaN or infinite voxels in (C, D, H, W)."""
    # A sum is finite only if every term is; it may also overflow, so the slow look decides.
    if array.dtype.kind != "f":
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(array.sum(dtype=np.result_type(array.dtype, np.float32))):
            return
    bad = ~np.isfinite(array)
    count = int(np.count_nonzero(bad))
    if count:
        first = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))
        raise ValueError(
            f"{where}: {count} voxels are NaN or infinite, the first at (D, H, W) = {first[1:]} of channel {first[0]}; "
            "replace them (for example by the value of air)."
        )
