"""Reads a part of a file, without the rest where the format allows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hasten.cases.dicom import read_series
from hasten.cases.formats import kind_of, read_file, read_file_header
from hasten.cases.itk import read_itk
from hasten.cases.nifti import read_nifti_region
from hasten.cases.tiff import read_tiff
from hasten.cases.types import Shape, Volume


def read_region(path: str | Path, start: Sequence[int], size: Sequence[int], *, label: bool = False) -> Volume:
    """The region of a file that starts at voxel `start` and has `size` voxels, each (D, H, W), as (C, *size).

    The array is that part of `read_file(path, label=label).array`, of the same type; the affine is moved, so that its
    voxel (0, 0, 0) is the region's. What is read: of .nii and .img, the mapped pages that hold the region; of a DICOM
    series and a TIFF stack, their slices; of uncompressed .mha and .mhd, the rows. NRRD, compressed files and pictures
    are decoded whole, and the region is cut out. Raises ValueError for a region that is not inside the volume.
    """
    path = Path(path)
    shape, _, _ = read_file_header(path)
    start, size = _checked(path, shape, start, size)
    depth, height, width = (slice(at, at + length) for at, length in zip(start, size, strict=True))
    match kind_of(path):
        case "nifti":
            volume = read_nifti_region(path, start, size)
        case "itk":
            volume = read_itk(path, (start, size))
        case "series":
            slices = read_series(path, depth, label=label)
            volume = Volume(slices.array[:, :, height, width].copy(), slices.affine)
        case "tiff":
            slices = read_tiff(path, indices=label, part=depth)
            volume = Volume(slices.array[:, :, height, width].copy(), slices.affine)
        case _:
            case_volume = read_file(path, label=label)
            volume = Volume(case_volume.array[:, depth, height, width].copy(), case_volume.affine)
    affine = volume.affine.copy()
    affine[:3, 3] += affine[:3, :3] @ np.array(start[::-1], np.float64)
    return Volume(volume.array, affine)


def _checked(path: Path, shape: Shape, start: Sequence[int], size: Sequence[int]) -> tuple[Shape, Shape]:
    first, length = tuple(map(int, start)), tuple(map(int, size))
    inside = len(first) == len(length) == 3 and all(
        at >= 0 and count > 0 and at + count <= side for at, count, side in zip(first, length, shape, strict=True)
    )
    if not inside:
        raise ValueError(
            f"{path}: the region of size {length} at {first} is not inside the volume of shape {shape} (D, H, W); "
            "choose a start of at least 0 and a size of at least 1 that end inside it."
        )
    return (first[0], first[1], first[2]), (length[0], length[1], length[2])
