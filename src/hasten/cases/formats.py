"""Selects the reader for a file by its name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hasten.cases.dicom import check_is_image, is_series, read_series, read_series_header
from hasten.cases.itk import ITK_ENDINGS, data_file, read_itk, read_itk_header
from hasten.cases.nifti import NIFTI_ENDINGS, read_nifti, read_nifti_header
from hasten.cases.picture import PICTURE_ENDINGS, read_picture, read_picture_header
from hasten.cases.tiff import TIFF_ENDINGS, is_stack, read_pixel_size, read_tiff, read_tiff_header
from hasten.cases.types import Shape, Volume, spacing_of

Header = tuple[Shape, int, np.ndarray]
"""Shape (D, H, W), number of channels and affine (4, 4)."""


class Reader(NamedTuple):
    """How files of one kind are read."""

    endings: tuple[str, ...]
    read: Callable[[Path, bool], Volume]
    """Takes the path, and whether it is a label map."""
    header: Callable[[Path], Header]


READERS = {
    "nifti": Reader(NIFTI_ENDINGS, lambda path, label: read_nifti(path), read_nifti_header),
    "itk": Reader(ITK_ENDINGS, lambda path, label: read_itk(path), read_itk_header),
    "series": Reader((), lambda path, label: read_series(path), read_series_header),
    "tiff": Reader(TIFF_ENDINGS, lambda path, label: read_tiff(path, indices=label), read_tiff_header),
    "picture": Reader(PICTURE_ENDINGS, lambda path, label: read_picture(path, indices=label), read_picture_header),
}
"""Readers by kind; `series` is a folder."""
_WITHOUT_POSITION = (*PICTURE_ENDINGS, *TIFF_ENDINGS)
ENDINGS = tuple(ending for reader in READERS.values() for ending in reader.endings)
_DOUBLE = {".nrrd": ".seg", ".tif": ".ome", ".tiff": ".ome"}
"""What stands before an ending in names of 3D Slicer's segmentations and of OME-TIFF, and belongs to the ending."""


def ending(name: str | Path) -> str:
    """The known ending of a file name, lower case, or "" for another kind of file."""
    low = str(name).lower()
    last = low[low.rfind(".") :]
    return last if last in ENDINGS else next((each for each in ENDINGS if low.endswith(each)), "")


def stem(path: Path) -> str:
    """The file name without its known ending (`a.b.nii.gz` gives `a.b`); the name of a folder."""
    if path.is_dir():
        return path.name
    suffix = ending(path)
    return _without(path.name, suffix) if suffix else path.stem


def _without(name: str, suffix: str) -> str:
    """A file name without its known ending, of which there may be two parts (`a.ome.tif` gives `a`)."""
    name, first = name[: -len(suffix)], _DOUBLE.get(suffix)
    return name[: -len(first)] if first and name.lower().endswith(first) and len(name) > len(first) else name


def is_picture(path: Path) -> bool:
    """Whether a file is a 2-D picture, which has no position in space. A TIFF of several slices is none.

    Raises ValueError for a TIFF that can't be read.
    """
    return ending(path) in _WITHOUT_POSITION and not is_stack(path)


def may_lack_position(path: Path) -> bool:
    """Whether files of this kind may have no position: pictures and TIFFs.

    Decided by the name, so that no label is opened.
    """
    return ending(path) in _WITHOUT_POSITION


def lacks_position(path: Path, affine: np.ndarray) -> bool:
    """Whether a file states no position or spacing: a picture or TIFF stack, its affine (4, 4) the identity."""
    return may_lack_position(path) and np.array_equal(affine, np.eye(4))


def stated_spacing(path: Path, affine: np.ndarray) -> tuple[float, float, float] | None:
    """Voxel spacing (D, H, W) in mm that a file states; None where it states none. affine: (4, 4), as it is read.

    A TIFF of one slice has no position, but may state the size of its pixels. Raises ValueError.
    """
    if not lacks_position(path, affine):
        return spacing_of(affine)
    return read_pixel_size(path) if ending(path) in TIFF_ENDINGS else None


def is_nifti(path: Path) -> bool:
    return not path.is_dir() and ending(path) in NIFTI_ENDINGS


def named_files(folder: Path) -> list[tuple[str, Path]]:
    """The images of a folder in the order of their names, each with its `stem`: files, and folders of a DICOM series.

    Hidden ones are left out, and no file is opened.
    """
    result = []
    with os.scandir(folder) as entries:
        for entry in sorted((each for each in entries if not each.name.startswith(".")), key=lambda each: each.name):
            suffix = ending(entry.name)
            if entry.is_file():
                if suffix:
                    result.append((_without(entry.name, suffix), folder / entry.name))
            elif is_series(folder / entry.name):
                result.append((entry.name, folder / entry.name))
    return result


def read_file(path: str | Path, *, label: bool = False) -> Volume:
    """Read one file, or the DICOM series of a folder, as (C, D, H, W). Raises ValueError.

    `label` reads a colour-mapped picture as its indices, and refuses lossy compression.
    """
    path = Path(path)
    return READERS[reader_of(path)].read(path, label)


def read_file_header(path: str | Path) -> Header:
    """Shape (D, H, W), number of channels and affine (4, 4) of one file. Raises ValueError."""
    path = Path(path)
    return READERS[reader_of(path)].header(path)


def reader_of(path: Path) -> str:
    """The key of the reader for a path. Raises ValueError for a name of unknown kind, and for a device or a pipe."""
    if path.is_dir():
        return "series"
    check_regular(path, path)
    second = data_file(path)
    if second is not None:
        check_regular(path.parent / second, path)
    suffix = ending(path)
    if not suffix:
        if path.is_file():
            check_is_image(path)
        raise ValueError(f"{path}: is of no known kind ({', '.join(ENDINGS)}); convert it to .nii.gz or .png.")
    return next(kind for kind, reader in READERS.items() if suffix in reader.endings)


def check_regular(file: Path, image: Path) -> None:
    """Raise ValueError, naming `image`, for a device or a pipe. Folders and missing files pass."""
    if file.exists() and not file.is_file() and not file.is_dir():
        which = "" if file == image else f"{file} "
        raise ValueError(f"{image}: {which}is a device or a pipe, which may never end; name a regular file.")
