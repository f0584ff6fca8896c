"""Which reader a file name asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hasten.cases.nifti import NIFTI_ENDINGS, read_nifti, read_nifti_header
from hasten.cases.picture import PICTURE_ENDINGS, read_picture, read_picture_header
from hasten.cases.types import Volume

ENDINGS = (*NIFTI_ENDINGS, *PICTURE_ENDINGS)


def ending(path: Path) -> str:
    """The known ending of a file name, lower case, or "" for another kind of file."""
    name = path.name.lower()
    return next((known for known in ENDINGS if name.endswith(known)), "")


def stem(path: Path) -> str:
    """The file name without its known ending (`a.b.nii.gz` gives `a.b`)."""
    known = ending(path)
    return path.name[: len(path.name) - len(known)] if known else path.stem


def is_picture(path: Path) -> bool:
    return ending(path) in PICTURE_ENDINGS


def list_files(folder: Path) -> list[Path]:
    """The image files of a folder by name; hidden files are left out, and a .hdr/.img pair is named by its .img."""
    kinds = tuple(known for known in ENDINGS if not known.startswith(".hdr"))
    return sorted(p for p in folder.iterdir() if ending(p) in kinds and not p.name.startswith(".") and p.is_file())


def read_file(path: Path, *, label: bool = False) -> Volume:
    """Read one file as (C, D, H, W); `label` reads a colour-mapped picture as its indices. Raises ValueError."""
    _check_known(path)
    return read_picture(path, indices=label) if is_picture(path) else read_nifti(path)


def read_file_header(path: Path) -> tuple[tuple[int, int, int], int, np.ndarray]:
    """Shape (D, H, W), number of channels and affine (4, 4) of one file. Raises ValueError."""
    _check_known(path)
    return read_picture_header(path) if is_picture(path) else read_nifti_header(path)


def _check_known(path: Path) -> None:
    if not ending(path):
        raise ValueError(f"{path}: is of no known kind ({', '.join(ENDINGS)}); convert it to .nii.gz or .png.")
