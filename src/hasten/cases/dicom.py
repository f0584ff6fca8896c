"""Folders with one DICOM series: its slices, their order and their positions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hasten.cases.itk import TO_RAS, channels_first, explain_itk_errors, open_itk, physical_affine
from hasten.cases.types import Shape, Volume

_SERIES = "0020|000e"
_PLACE = {"0020|0032": 3, "0020|0037": 6}
"""Tags of the position and the orientation, and how many numbers each has."""
_ROUNDING = 0.11
"""mm: positions are often rounded to 0.1 mm, so that steps differ by as much."""
_SOP_CLASS = b"\x02\x00\x02\x00UI"
"""The tag in the header that says what a DICOM file is, in explicit VR as every header is written."""
_NO_IMAGE = {
    "1.2.840.10008.5.1.4.1.1.66.4": ("segmentation (SEG)", "dcmqi: segimage2itkimage -t nii"),
    "1.2.840.10008.5.1.4.1.1.66.7": ("segmentation (SEG)", "highdicom"),
    "1.2.840.10008.5.1.4.1.1.481.3": ("set of contours (RTSTRUCT)", "dcmrtstruct2nii"),
}
_OTHER_ENDING = re.compile(r"\.(nii|gz|hdr|png|tiff?|jpe?g|bmp|nrrd|nhdr|mh[ad]|raw|txt|md|csv|json|xml|yaml|pdf)$")


@dataclass(frozen=True, slots=True)
class _Slice:
    path: Path
    series: str
    shape: Shape
    num_channels: int
    kind: int
    """SimpleITK's number of the voxel type after rescaling."""
    unplaced: str
    """The tag that doesn't say where it lies; empty if both do."""
    affine: np.ndarray


def is_series(path: Path) -> bool:
    """Whether a folder holds DICOM files, hidden ones aside; files of other known kinds are passed over unopened."""
    return path.is_dir() and any(_is_slice(file) for file in path.iterdir())


def read_series(folder: Path) -> Volume:
    """Read the one DICOM series of a folder as (C, D, H, W).

    Slices are sorted by their position along the normal, and rescale slope and intercept are applied. The array has
    the type that holds the rescaled values: integers where slope and intercept are integers, else float32, also where
    slices differ. Raises ValueError for a folder without a series, several series, slices of different size or
    direction, missing and repeated slices, and without SimpleITK.
    """
    with explain_itk_errors(folder):
        import SimpleITK as sitk

        slices = _slices(folder)
        if len(slices) == 1:
            image = sitk.ReadImage(str(slices[0].path))
        else:
            reader = sitk.ImageSeriesReader()
            reader.SetFileNames([str(each.path) for each in slices])
            if len({each.kind for each in slices}) > 1:
                # The type of the first slice would cut the values of the others.
                reader.SetOutputPixelType(sitk.sitkFloat32)
            image = reader.Execute()
        array = channels_first(image, folder)
    return Volume(array, _affine(slices))


def read_series_header(folder: Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (D, H, W), number of channels and (4, 4) affine, from headers. Raises what `read_series` raises."""
    with explain_itk_errors(folder):
        slices = _slices(folder)
    depth, height, width = slices[0].shape
    return (len(slices) if len(slices) > 1 else depth, height, width), slices[0].num_channels, _affine(slices)


def check_is_image(file: Path) -> None:
    """Raise ValueError for a DICOM file of a segmentation or of contours, which is no image."""
    with file.open("rb") as opened:
        head = opened.read(1024)
    at = head.find(_SOP_CLASS)
    if head[128:132] != b"DICM" or at < 0:
        return
    length = int.from_bytes(head[at + len(_SOP_CLASS) :][:2], "little")
    kind = head[at + len(_SOP_CLASS) + 2 :][:length].decode("latin-1").rstrip("\0 ")
    if kind in _NO_IMAGE:
        name, program = _NO_IMAGE[kind]
        raise ValueError(
            f"{file}: is a DICOM {name}, which is no image; convert it to .nii.gz on the grid of its image ({program}, "
            "or 3D Slicer: Segmentations > Export to files)."
        )


def _is_slice(file: Path) -> bool:
    name = file.name.lower()
    if name.startswith(".") or name == "dicomdir" or _OTHER_ENDING.search(name) or not file.is_file():
        return False
    if name.endswith(".dcm"):
        return True
    with file.open("rb") as stream:
        return stream.read(132)[128:] == b"DICM"


def _slices(folder: Path) -> list[_Slice]:
    """The files of the folder's one series, sorted by position along its normal. Raises ValueError."""
    slices = [_read_slice_header(file) for file in sorted(folder.iterdir()) if _is_slice(file)]
    if not slices:
        raise ValueError(f"{folder}: holds no DICOM series; name the folder of its slices.")
    series: dict[str, list[_Slice]] = {}
    for each in slices:
        series.setdefault(each.series, []).append(each)
    if len(series) > 1:
        listed = "; ".join(f"{name} ({len(files)} files, {files[0].path.name} ...)" for name, files in series.items())
        raise ValueError(f"{folder}: holds {len(series)} DICOM series, so which is meant? Give each a folder: {listed}")
    return slices if len(slices) == 1 else _sorted(slices, folder)


def _read_slice_header(file: Path) -> _Slice:
    check_is_image(file)
    with explain_itk_errors(file):
        reader = open_itk(file)
    width, height, depth = (*reader.GetSize(), 1)[:3]
    affine = physical_affine(reader, file)
    return _Slice(
        path=file,
        series=reader.GetMetaData(_SERIES).strip() if reader.HasMetaDataKey(_SERIES) else "unnamed",
        shape=(depth, height, width),
        num_channels=reader.GetNumberOfComponents(),
        kind=reader.GetPixelIDValue(),
        unplaced=_unplaced(reader, affine),
        affine=affine,
    )


def _unplaced(reader: Any, affine: np.ndarray) -> str:
    """The first tag of `_PLACE` that is missing, holds anything but numbers, or has other directions than `affine`.

    In place of what it can't use, SimpleITK takes 0 or the directions of a plane across the body.
    """
    stated: list[float] = []
    for tag, count in _PLACE.items():
        text = reader.GetMetaData(tag) if reader.HasMetaDataKey(tag) else ""
        try:
            stated = [float(part) for part in text.split("\\")]
        except ValueError:
            return tag
        if len(stated) != count or not np.isfinite(stated).all():
            return tag
    sides, taken = np.reshape(stated, (2, 3)), (TO_RAS @ affine)[:3, :2].T
    lengths = np.linalg.norm(sides, axis=1) * np.linalg.norm(taken, axis=1)
    return "" if ((sides * taken).sum(1) > 0.99 * lengths).all() else tag


def _sorted(slices: list[_Slice], folder: Path) -> list[_Slice]:
    first = slices[0]
    for each in slices:
        if each.unplaced:
            raise ValueError(f"{each.path}: doesn't say where it lies (tag {each.unplaced}); export the series again.")
        if each.shape[0] > 1:
            raise ValueError(f"{each.path}: holds {each.shape[0]} frames beside other files; give it its own folder.")
        plane, axes = first.affine[:3, :2], each.affine[:3, :2]
        alike = (each.shape, each.num_channels) == (first.shape, first.num_channels)
        if not alike or np.abs(axes - plane).max() > 1e-3 * np.abs(plane).max():
            raise ValueError(
                f"{folder}: {first.path.name} of {first.shape[1:]} and {each.path.name} of {each.shape[1:]} (H, W) "
                "differ in size, channels, direction or pixel spacing; move those of another acquisition away."
            )
    normal = np.cross(first.affine[:3, 0], first.affine[:3, 1])
    ordered = sorted(slices, key=lambda each: float(normal @ each.affine[:3, 3]))
    _check_steps(ordered, folder)
    return ordered


def _check_steps(slices: list[_Slice], folder: Path) -> None:
    offsets = np.diff(np.array([each.affine[:3, 3] for each in slices]), axis=0)
    usual = np.median(offsets, axis=0)
    step = float(np.linalg.norm(usual))
    odd = np.flatnonzero(np.linalg.norm(offsets - usual, axis=1) > min(_ROUNDING, 0.4 * step))
    if odd.size or step == 0:
        at = int(odd[0]) if odd.size else 0
        raise ValueError(
            f"{folder}: its slices are {step:.4g} mm apart, but {slices[at].path.name} and {slices[at + 1].path.name} "
            f"are {np.linalg.norm(offsets[at]):.4g} mm; restore the missing slices or remove repeats."
        )


def _affine(slices: list[_Slice]) -> np.ndarray:
    affine = slices[0].affine.copy()
    if len(slices) > 1:
        # The offset from slice to slice need not be the normal: a tilted gantry shears the volume.
        affine[:3, 2] = (slices[-1].affine[:3, 3] - affine[:3, 3]) / (len(slices) - 1)
    return affine
