"""NIfTI files: whole-file reads, header-only reads and label maps written back.

The voxels of a NIfTI file lie x fastest, so the flat data reshaped to (C, D, H, W) is C-contiguous: no layout copy.
"""

from __future__ import annotations

import gzip
import math
import uuid
import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.spatialimages import HeaderDataError

from hasten.cases.types import Shape, Volume
from hasten.files import replacing

GzipError: Any
try:
    from isal import igzip
    from isal.igzip_lib import IsalError as GzipError
except ImportError:  # isal has no wheel for every platform; the standard library reads the same bytes, slower
    igzip = gzip
    GzipError = zlib.error

NIFTI_ENDINGS = (".nii.gz", ".nii")
_GZIP_MAGIC = b"\x1f\x8b"
_BROKEN_GZIP: Any = (OSError, EOFError, zlib.error, GzipError)
_HEADER_BYTES = 540  # of NIfTI-2; NIfTI-1 takes 348
_COLOURED, _COLOURS = (128, 2304), "RGB"
"""NIfTI's codes of voxels in colour (RGB24, RGBA32), and the fields of these that are channels: opacity is none."""
_LONGEST_AXIS = 32767
"""Voxels of an axis that NIfTI-1 can count."""
_UNIT_IN_MM = {1: 1e3, 2: 1.0, 3: 1e-3}
"""Units of length in `xyzt_units`: meter, mm, micron."""
_PADDING = 512
"""Zero bytes behind the voxels that are taken for padding: a block of a tape or a disk."""


def read_nifti(path: Path) -> Volume:
    """Read a NIfTI file (`.nii`, `.nii.gz`).

    Returns a volume of shape (C, D, H, W) in the file's dtype and native byte order; float32 where the header scales
    the values. A 3-D file has C = 1; the fourth axis of a 4-D file is C. The array is read-only where it is a view of
    the decompressed bytes. Raises ValueError for a file that is no readable NIfTI.
    """
    data = _content(path)
    header = _parse_header(data[:_HEADER_BYTES], path)
    shape, num_channels, affine = _describe(header, path)
    values = _stored(data, header, (num_channels, *shape), path)
    return Volume(_scaled(values, *_slope_inter(header, path)), affine)


def read_nifti_header(path: Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (D, H, W), number of channels and (4, 4) affine in mm, from the first bytes. Raises ValueError."""
    return _describe(_read_header(path), path)


def read_scaling(path: Path) -> tuple[float, float]:
    """Slope and intercept by which the header of a NIfTI file scales its voxels; (1, 0) if it does not."""
    return _slope_inter(_read_header(path), path)


def write_nifti(path: str | Path, array: np.ndarray, affine: np.ndarray, like: str | Path | None = None) -> Path:
    """Write (D, H, W), or channels (C, D, H, W), as `.nii` or `.nii.gz` (gzip level 1), atomically: no half a file.

    affine: in mm. `like` names a NIfTI file whose header fields (orientation codes, units, description) are kept.
    NIfTI-2 where that is one, or an axis is longer than NIfTI-1 can count.
    """
    path = Path(path)
    if not path.name.endswith((".nii", ".nii.gz")):
        raise ValueError(f"{path}: is not the name of a NIfTI file; end it in .nii.gz or .nii.")
    assert array.ndim in (3, 4)
    assert affine.shape == (4, 4)
    header = None
    if like is not None:
        header = _read_header(Path(like)).copy()
        header.set_data_dtype(array.dtype)
        header["cal_min"] = header["cal_max"] = 0
        affine = affine / _to_mm(header)
    wide = max(array.shape) > _LONGEST_AXIS or (header is not None and header["sizeof_hdr"] == _HEADER_BYTES)
    kind = nib.Nifti2Image if wide else nib.Nifti1Image
    data = kind(array.T, affine, header, dtype=array.dtype).to_bytes()
    if path.name.endswith(".gz"):
        data = igzip.compress(data, 1, mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A short name, as that of the file may be as long as a file system allows.
    with replacing(path, path.with_name(f".{uuid.uuid4().hex}.tmp"), durable=False) as file:
        file.write(data)
    return path


def write_label_nifti(path: str | Path, label: np.ndarray, affine: np.ndarray, like: str | Path | None = None) -> Path:
    """Write a label map (D, H, W) of label values in the smallest integer type that holds them. See `write_nifti`."""
    assert label.dtype.kind in "iub"
    low, high = (int(label.min()), int(label.max())) if label.size else (0, 0)
    fits = (t for t in (np.uint8, np.int16, np.int32) if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    return write_nifti(path, label.astype(next(fits), copy=False), affine, like)


def _content(path: Path) -> bytes:
    """The bytes of a file, inflated if it is compressed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions.") from error
    if data[:2] != _GZIP_MAGIC:
        return data
    try:
        # One call on the whole file: a stream read in small pieces hands the GIL back and forth thousands of times.
        return bytes(igzip.decompress(data))
    except _BROKEN_GZIP as error:
        raise ValueError(
            f"{path}: is a damaged or truncated gzip file ({error}); copy or download it again."
        ) from error


def _stored(data: bytes, header: Any, shape: tuple[int, ...], path: Path) -> np.ndarray:
    """A view of the voxels. Raises ValueError where the file holds fewer bytes than the header declares, or more."""
    dtype, offset = _checked_dtype(header, path), _data_offset(header, path)
    if dtype.fields:
        shape = (shape[0] // len(_COLOURS), *shape[1:])
    end = offset + math.prod(shape) * dtype.itemsize
    surplus = len(data) - end
    if surplus < 0 or surplus > _PADDING or any(data[end:]):
        raise ValueError(
            f"{path}: the header says {shape[0]} x {shape[1:]} voxels of {dtype.name}, which end at byte {end}, but "
            f"the file holds {len(data)} bytes; the header is wrong or the file is damaged: copy or export it again."
        )
    voxels = np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
    if dtype.fields:
        return np.stack([voxels[colour] for colour in _COLOURS], 1).reshape(-1, *shape[1:])
    return voxels


def _read_header(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            start = file.read(2)
            file.seek(0)
            if start == _GZIP_MAGIC:
                with gzip.open(file) as stream:
                    data = stream.read(_HEADER_BYTES)
            else:
                data = file.read(_HEADER_BYTES)
    except _BROKEN_GZIP as error:
        raise ValueError(f"{path}: its header cannot be read ({error}); check or copy the file again.") from error
    return _parse_header(data, path)


def _parse_header(data: bytes, path: Path) -> Any:
    if not data:
        raise ValueError(f"{path}: is empty; copy or download it again.")
    sizes = (int.from_bytes(data[:4], "little"), int.from_bytes(data[:4], "big"))
    kind, size = (nib.Nifti2Header, 540) if 540 in sizes else (nib.Nifti1Header, 348)
    if size not in sizes:
        raise ValueError(f"{path}: is no NIfTI file (it starts with {data[:8]!r}); convert it, or correct the list.")
    if len(data) < size:
        raise ValueError(f"{path}: ends inside its header ({len(data)} bytes); copy or download it again.")
    try:
        header = kind(data[:size], check=False)
        _data_offset(header, path)  # nibabel's check trips over an infinite one
        _check_spacing(header, path)
        header.check_fix()
        return header
    except HeaderDataError as error:
        raise ValueError(f"{path}: has an impossible NIfTI header ({error}); export the file again.") from error


def _check_spacing(header: Any, path: Path) -> None:
    """Raise ValueError for a spacing of 0 that counts, which nibabel takes for 1."""
    for axis in range(1, min(3, int(header["dim"][0])) + 1):
        if header["sform_code"] == 0 and header["dim"][axis] > 1 and header["pixdim"][axis] == 0:
            raise ValueError(f"{path}: its spacing pixdim[{axis}] is 0; set it to that in mm, or set a valid sform.")


def _data_offset(header: Any, path: Path) -> int:
    """The byte of a `.nii` at which its voxels begin; 0 stands for the one behind the header."""
    offset = float(header["vox_offset"])
    if not (offset == 0 or header.single_vox_offset <= offset < 2**53):
        raise ValueError(f"{path}: has an impossible NIfTI header (vox_offset {offset:g}); export the file again.")
    return int(offset) or int(header.single_vox_offset)


def _describe(header: Any, path: Path) -> tuple[Shape, int, np.ndarray]:
    shape = tuple(int(n) for n in header.get_data_shape())
    if len(shape) < 2 or min(shape) < 1:
        raise ValueError(f"{path}: has an impossible NIfTI header (dimensions {shape}); export the file again.")
    x, y, z = (*shape, 1, 1)[:3]
    samples = len(_COLOURS) if int(header["datatype"]) in _COLOURED else 1
    extra = [n for n in shape[3:] if n > 1]
    if len(extra) > 1:
        raise ValueError(f"{path}: has dimensions {shape}; at most one axis (channels) may follow x, y, z: split it.")
    try:
        affine = np.asarray(header.get_best_affine(), np.float64)
    except (HeaderDataError, ValueError) as error:
        raise ValueError(f"{path}: has an impossible orientation ({error}); export the file again.") from error
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine[:3, :3]) < 3:
        raise ValueError(f"{path}: its affine {affine[:3].tolist()} maps no volume; set a valid sform or qform.")
    return (z, y, x), (extra[0] if extra else 1) * samples, _to_mm(header) * affine


def _to_mm(header: Any) -> np.ndarray:
    """(4, 1) factors of the rows of an affine in the header's unit of length that give mm; 1 of no unit."""
    factor = _UNIT_IN_MM.get(int(header["xyzt_units"]) % 8, 1.0)
    return np.array([[factor], [factor], [factor], [1.0]])


def _checked_dtype(header: Any, path: Path) -> np.dtype:
    try:
        dtype = np.dtype(header.get_data_dtype())
    except Exception as error:
        raise ValueError(f"{path}: stores an unknown type of voxel ({error}); export it as float32.") from error
    if not dtype.fields and (dtype.kind not in "iuf" or dtype.itemsize > 8):
        raise ValueError(f"{path}: stores voxels of type {dtype}; export it as float32.")
    return dtype


def _slope_inter(header: Any, path: Path) -> tuple[float, float]:
    if math.isinf(header["scl_slope"]):  # which nibabel takes for 1
        raise ValueError(
            f"{path}: has an infinite intensity scaling (scl_slope); set it to 1, or export the file again."
        )
    try:
        slope, inter = header.get_slope_inter()
    except HeaderDataError as error:
        raise ValueError(f"{path}: has an impossible intensity scaling ({error}); export the file again.") from error
    return (1.0, 0.0) if slope is None else (slope, inter or 0.0)


def _scaled(flat: np.ndarray, slope: float, inter: float) -> np.ndarray:
    if (slope, inter) != (1.0, 0.0):
        # float32 holds 16-bit integers exactly; wider ones are scaled in float64 so that nothing cancels.
        exact = flat.dtype.itemsize <= 2 or flat.dtype.name == "float32"
        scaled = flat.astype(np.float32 if exact else np.float64)
        np.multiply(scaled, slope, out=scaled)
        np.add(scaled, inter, out=scaled)
        return scaled.astype(np.float32, copy=False)
    if flat.dtype.isnative and flat.flags.aligned:
        return flat
    return flat.astype(flat.dtype.newbyteorder("="))
