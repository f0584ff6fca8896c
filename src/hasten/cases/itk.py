"""NRRD and MetaImage files by SimpleITK, which knows their many variants (extra `itk`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hasten.cases.segments import parse_segments
from hasten.cases.types import IN_MM, Shape, Volume

ITK_ENDINGS = (".nrrd", ".nhdr", ".mha", ".mhd")
_DATA_KEYS = {".mhd": "elementdatafile", ".mha": "elementdatafile", ".nhdr": "data file", ".nrrd": "data file"}
_HEADER_BYTES = 1 << 16
_MOST_DIMS = 10
"""Largest number of axes of a MetaImage file: SimpleITK ends the process on one that declares more, or none."""
TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""ITK and DICOM count mm to the left and back; NIfTI, and Hasten, to the right and front."""


def read_itk(path: Path) -> Volume:
    """Read a NRRD or MetaImage file as (C, D, H, W).

    The components of a voxel are channels. The array is in the file's dtype, float64 as float32. Raises ValueError for
    what is no such file or has more than three axes, and without SimpleITK.
    """
    with explain_itk_errors(path):
        reader = open_itk(path)
        affine = physical_affine(reader, path)
        fields = {key: reader.GetMetaData(key) for key in reader.GetMetaDataKeys()}
        return Volume(channels_first(reader.Execute(), path), affine, parse_segments(fields, path))


def read_itk_header(path: Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (D, H, W), number of channels and (4, 4) affine, without the voxels. Raises what `read_itk` raises."""
    with explain_itk_errors(path):
        reader = open_itk(path)
        width, height, depth = (*reader.GetSize(), 1)[:3]
        return (depth, height, width), reader.GetNumberOfComponents(), physical_affine(reader, path)


def data_file(path: Path) -> str | None:
    """The file that a MetaImage or NRRD header names for its voxels; None for a list of files and other formats."""
    value = _fields(path).get(_DATA_KEYS.get(path.suffix.lower(), ""), "")
    return value if value and value.split()[0].lower() not in ("local", "internal", "list") else None


@contextmanager
def explain_itk_errors(path: Path) -> Iterator[None]:
    """Errors of SimpleITK, and that it is not installed, as a ValueError that names the file."""
    try:
        import SimpleITK  # noqa: F401

        yield
    except ImportError as error:
        raise ValueError(f"{path}: is read by SimpleITK; install it (pip install 'hasten[itk]').") from error
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else "no reason given"
        raise ValueError(f"{path}: can't be read ({reason}); check it, or export it again.") from error


def open_itk(path: Path) -> Any:
    """SimpleITK's reader of a file of at most three axes, its header read."""
    import SimpleITK as sitk

    if not path.exists():
        raise ValueError(f"{path}: does not exist; check the path.")
    fields = _fields(path)
    dims = fields.get("ndims", "3")
    if dims not in map(str, range(1, _MOST_DIMS + 1)):
        raise ValueError(
            f"{path}: its header says NDims = {dims[:20]}; correct it to 2 or 3, or export the file again."
        )
    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    sizes = reader.GetSize()
    if not 2 <= len(sizes) <= 3 or min(sizes) < 1:
        shown = " x ".join(map(str, sizes))
        raise ValueError(f"{path}: has {len(sizes)} axes ({shown}); save each volume as a file of two or three axes.")
    if fields.get("elementdatafile", "").lower().startswith("list"):
        raise ValueError(f"{path}: names a list of files for its voxels; save them as one file, or as .nii.gz.")
    return reader


def _fields(path: Path) -> dict[str, str]:
    """The fields of the text header of a MetaImage or NRRD, by their names in lower case; empty for other files."""
    if path.suffix.lower() not in _DATA_KEYS or not path.is_file():
        return {}
    with path.open("rb") as file:
        text = file.read(_HEADER_BYTES).decode("utf-8", "surrogateescape")
    sign = "="
    if path.suffix.lower() in (".nhdr", ".nrrd"):
        sign, text = ":", re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]  # voxels follow the first empty line
    parts = (line.partition(sign) for line in text.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in parts}


def channels_first(image: Any, path: Path) -> np.ndarray:
    """The voxels of a SimpleITK image as (C, D, H, W), float64 as float32. Raises ValueError for complex voxels."""
    import SimpleITK as sitk

    array = sitk.GetArrayFromImage(image)
    if image.GetDimension() == 2:
        array = array[None]
    channels = np.moveaxis(array, -1, 0) if image.GetNumberOfComponentsPerPixel() > 1 else array[None]
    if channels.dtype.kind not in "iuf":
        raise ValueError(f"{path}: stores voxels of type {channels.dtype}; export it as float32.")
    return channels.astype(np.float32) if channels.dtype == np.float64 else channels


def physical_affine(image: Any, path: Path) -> np.ndarray:
    """(4, 4) voxel index (x, y, z) to mm to the right, front and head, of a SimpleITK image or reader."""
    dims = image.GetDimension()
    spacing, origin = np.array(image.GetSpacing()), np.array(image.GetOrigin())
    affine = np.eye(4)
    affine[:dims, :dims] = np.array(image.GetDirection()).reshape(dims, dims) * spacing
    affine[:dims, 3] = origin
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine) < 4:
        raise ValueError(f"{path}: its directions {affine[:3, :3].tolist()} span no volume; export it again.")
    affine[:dims] *= _unit_in_mm(path)
    return TO_RAS @ affine


def _unit_in_mm(path: Path) -> float:
    """The unit of length that a header states, in mm, as SimpleITK passes the numbers on; 1 where it states none."""
    fields = _fields(path)
    stated = (fields.get(name, "") for name in ("distanceunits", "space units", "units"))
    units = {IN_MM[name] for text in stated for name in re.findall(r'[^"\s]+', text.lower()) if name in IN_MM}
    if len(units) > 1:
        raise ValueError(f"{path}: its header states several units of length; export it again, in mm.")
    return units.pop() if units else 1.0
