"""Images and DICOM series that SimpleITK writes, for the tests of what reads them."""

from __future__ import annotations

import locale
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

sitk = pytest.importorskip("SimpleITK")

OBLIQUE = Rotation.from_euler("xyz", (10, -25, 40), degrees=True).as_matrix()
Grid = tuple[tuple[float, float, float], tuple[float, float, float], np.ndarray]
"""Spacing and origin (x, y, z) and direction (3, 3)."""
OWN_GRID: Grid = ((0.7, 0.8, 2.5), (10.0, -20.0, 30.0), OBLIQUE)
DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "float32"]


def image_of(array: np.ndarray, grid: Grid = OWN_GRID, *, vector: bool = False) -> Any:
    image = sitk.GetImageFromArray(array, isVector=vector)
    spacing, origin, direction = grid
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    image.SetDirection(direction.ravel().tolist())
    return image


def voxels(dtype: str = "int16", shape: tuple[int, ...] = (4, 5, 6), seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 120, shape).astype(dtype)


def affine_of(image: Any) -> np.ndarray:
    """Where SimpleITK says that voxels lie, to the right, front and head."""
    corners = [image.TransformIndexToPhysicalPoint(index) for index in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    origin, *ends = np.array(corners)
    affine = np.eye(4)
    affine[:3, :3] = np.array([end - origin for end in ends]).T
    affine[:3, 3] = origin
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Anisotropic, turned, and, as NRRD and NIfTI allow but DICOM does not, mirrored."""
    spacing = draw(st.tuples(*[st.floats(0.1, 8).map(lambda value: round(value, 3))] * 3))
    origin = draw(st.tuples(*[st.integers(-300, 300).map(float)] * 3))
    angles = draw(st.tuples(*[st.integers(-180, 180)] * 3))
    turned = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    return spacing, origin, turned @ np.diag([1.0, 1.0, draw(st.sampled_from([1.0, -1.0]))])


@contextmanager
def kept_locale() -> Iterator[None]:
    """Writing (not reading) DICOM sets the locale of the whole process to C, which breaks the tests that follow."""
    before = locale.setlocale(locale.LC_ALL)
    try:
        yield
    finally:
        locale.setlocale(locale.LC_ALL, before)


@kept_locale()
def write_series(
    folder: Path,
    array: np.ndarray,
    grid: Grid = OWN_GRID,
    *,
    uid: str = "1.2.3",
    skip: Sequence[int] = (),
    ending: str = ".dcm",
    names: Sequence[int] | None = None,
) -> Path:
    """One DICOM file a slice, which stores the values of `array`. `names` says which slice each file, in the order of
    the names, is; without it they are mixed."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    writer.SetImageIO("GDCMImageIO")
    volume = image_of(array, grid)
    direction = volume.GetDirection()
    order = list(range(len(array))) if names is None else list(names)
    for number in range(len(array)):
        if number in skip:
            continue
        part = volume[:, :, number]
        tags = {
            "0008|0060": "CT",
            "0020|000e": uid,
            "0020|000d": "1.2",
            "0008|0018": f"{uid}.{number + 1}",
            "0020|0037": "\\".join(f"{direction[i]:.10f}" for i in (0, 3, 6, 1, 4, 7)),
            "0020|0032": "\\".join(f"{value:.8f}" for value in volume.TransformIndexToPhysicalPoint((0, 0, number))),
            "0020|0013": str(number + 1),
            "0028|1053": "1",
            "0028|1052": "0",
        }
        for key, value in tags.items():
            part.SetMetaData(key, value)
        place = order.index(number) if names is not None else (7 * number) % 11
        writer.SetFileName(str(folder / f"{place:02d}-{uid}{ending}"))
        writer.Execute(part)
    return folder


def set_tag(file: Path, tag: tuple[int, int], text: str) -> None:
    """Change the text of one tag in a DICOM file as SimpleITK writes it (implicit VR, little endian)."""
    data = file.read_bytes()
    start = b"".join(part.to_bytes(2, "little") for part in tag)
    at = data.index(start) + 4
    length = int.from_bytes(data[at : at + 4], "little")
    value = text.encode() + b" " * (len(text) % 2)
    file.write_bytes(data[:at] + len(value).to_bytes(4, "little") + value + data[at + 4 + length :])


def get_tag(file: Path, name: str) -> str:
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(file))
    reader.ReadImageInformation()
    return str(reader.GetMetaData(name))


def read_by_sitk(folder: Path) -> Any:
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    return reader.Execute()
