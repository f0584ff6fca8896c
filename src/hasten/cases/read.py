"""Reads a case: joins its channels, checks its label against the image and maps it to class indices."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hasten.cases.formats import lacks_position, read_file
from hasten.cases.labels import to_class_index
from hasten.cases.types import Case, CaseSet, Volume, spacing_of

_AFFINE_TOLERANCE = 1e-3
"""Tolerance as a share of the smallest spacing: files written by different tools round their affines differently."""


def read_image(case: Case) -> Volume:
    """All channels of a case, (C, D, H, W). Raises ValueError if its files disagree or hold NaN or infinite voxels."""
    volumes = []
    for path in case.image:
        volume = read_file(path)
        check_finite(volume.array, path)
        volumes.append(volume)
    first = volumes[0]
    for path, volume in zip(case.image[1:], volumes[1:], strict=True):
        if volume.array.shape[1:] != first.array.shape[1:]:
            raise ValueError(
                f"{path}: its shape {volume.array.shape[1:]} differs from {first.array.shape[1:]} of {case.image[0]}; "
                f"resample the channels of case {case.id} onto one grid."
            )
        check_affine(volume.affine, path, first.affine, case.image[0])
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
    volume = read_file(case.label, label=True)
    if volume.array.shape[0] != 1:
        raise ValueError(
            f"{case.label}: has {volume.array.shape[0]} channels; store the label map as one channel of label values."
        )
    if volume.array.shape[1:] != image.array.shape[1:]:
        raise ValueError(
            f"{case.label}: its shape {volume.array.shape[1:]} differs from {image.array.shape[1:]} of {case.image[0]} "
            "(D, H, W); resample the label onto the image's grid, or correct the pairing of the files."
        )
    check_affine(volume.affine, case.label, image.affine, case.image[0])
    return to_class_index(volume.array[0], labels, case.label, ignore)


def check_affine(affine: np.ndarray, path: Path, reference: np.ndarray, reference_path: Path) -> None:
    """Raise ValueError if two files with positions, given by their affines (4, 4), do not match in space."""
    if lacks_position(path, affine) or lacks_position(reference_path, reference):
        return  # nothing to compare
    difference = float(np.abs(affine - reference).max())
    if not difference <= _AFFINE_TOLERANCE * min(spacing_of(reference)):
        raise ValueError(
            f"{path}: its affine differs from that of {reference_path} by up to {difference:.4g} mm; resample it onto "
            "that grid, or, if the voxels do correspond, copy the affine over."
        )


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
