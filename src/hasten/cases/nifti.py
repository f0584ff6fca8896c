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
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError

from hasten.cases.types import Volume

GzipError: Any
try:
    from isal import igzip
    from isal.igzip_lib import IsalError as GzipError
except ImportError:  # isal has no wheel for every platform; the standard library reads the same bytes, slower
    igzip = gzip
    GzipError = zlib.error

NIFTI_ENDINGS = (".nii.gz", ".nii", ".img.gz", ".hdr.gz", ".img", ".hdr")
_GZIP_MAGIC = b"\x1f\x8b"
_BROKEN_GZIP: Any = (OSError, EOFError, zlib.error, GzipError)
_HEADER_BYTES = 540  # of NIfTI-2; NIfTI-1 takes 348
Shape = tuple[int, int, int]
_Mapped = tuple[np.ndarray, float, float, np.ndarray]


def read_nifti(path: str | Path) -> Volume:
    """Read a NIfTI file (`.nii`, `.nii.gz`, `.hdr`/`.img`).

    Returns a volume of shape (C, D, H, W) in the file's dtype and native byte order; float32 where the header scales
    the values. A 3-D file has C = 1; the fourth axis of a 4-D file is C. The array is read-only where it is a view of
    the decompressed bytes. Raises ValueError for a file that is no readable NIfTI.
    """
    path = Path(path)
    if _is_pair(path):
        return _read_pair(path)
    data = _decompressed(path)
    header = _parse_header(data[:_HEADER_BYTES], path)
    shape, num_channels, affine = _describe(header, path)
    dtype = _checked_dtype(header, path)
    count, offset = num_channels * math.prod(shape), int(header.get_data_offset())
    _check_length(len(data), (num_channels, *shape), dtype, offset, path)
    flat = np.frombuffer(data, dtype, count, offset)
    slope, inter = _slope_inter(header, path)
    return Volume(_scaled(flat, slope, inter).reshape(num_channels, *shape), affine)


def read_nifti_region(path: str | Path, start: Shape, size: Shape) -> Volume:
    """A region (start, size) of a NIfTI file, each (D, H, W) and inside the volume, with the whole volume's affine.

    The file is mapped, so that only the pages of memory that hold the region are read. A compressed one is inflated
    whole. Raises what `read_nifti` raises.
    """
    path = Path(path)
    part = (slice(None), *(slice(at, at + length) for at, length in zip(start, size, strict=True)))
    mapped = _map_pair(path) if _is_pair(path) else _map(path)
    if mapped is None:
        whole = read_nifti(path)
        return Volume(whole.array[part].copy(), whole.affine)
    values, slope, inter, affine = mapped
    return Volume(_scaled(np.array(values[part]), slope, inter), affine)


def read_nifti_header(path: str | Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (D, H, W), number of channels and (4, 4) affine, from the first bytes of the file. Raises ValueError."""
    path = Path(path)
    if _is_pair(path):
        image = _load_pair(path)
        return _describe(image.header, path, image.affine)
    return _describe(_read_header(path), path)


def write_nifti(path: str | Path, array: np.ndarray, affine: np.ndarray, like: str | Path | None = None) -> Path:
    """Write (D, H, W), or channels (C, D, H, W), as `.nii` or `.nii.gz` (gzip level 1), atomically: no half a file.

    `like` names a NIfTI file whose header fields (orientation codes, units, description) are kept.
    """
    path = Path(path)
    if not path.name.endswith((".nii", ".nii.gz")):
        raise ValueError(f"{path}: is not the name of a NIfTI file; end it in .nii.gz or .nii.")
    assert array.ndim in (3, 4)
    assert affine.shape == (4, 4)
    header = None
    if like is not None:
        like = Path(like)
        header = (_load_pair(like).header if _is_pair(like) else _read_header(like)).copy()
        header.set_data_dtype(array.dtype)
        header["cal_min"] = header["cal_max"] = 0
    image = nib.Nifti1Image(array.T, affine, header, dtype=array.dtype)
    data = image.to_bytes()
    if path.name.endswith(".gz"):
        data = igzip.compress(data, 1, mtime=0)
    _write_atomically(path, data)
    return path


def write_label_nifti(path: str | Path, label: np.ndarray, affine: np.ndarray, like: str | Path | None = None) -> Path:
    """Write a label map (D, H, W) of label values in the smallest integer type that holds them. See `write_nifti`."""
    assert label.dtype.kind in "iub"
    low, high = (int(label.min()), int(label.max())) if label.size else (0, 0)
    fits = (t for t in (np.uint8, np.int16, np.int32) if np.iinfo(t).min <= low and high <= np.iinfo(t).max)
    return write_nifti(path, label.astype(next(fits), copy=False), affine, like)


def _decompressed(path: Path) -> bytes:
    # One call on the whole file: a stream read in small pieces hands the GIL back and forth thousands of times.
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions.") from error
    if data[:2] != _GZIP_MAGIC:
        return data
    try:
        return bytes(igzip.decompress(data))
    except _BROKEN_GZIP as error:
        raise ValueError(
            f"{path}: is a damaged or truncated gzip file ({error}); copy or download it again."
        ) from error


def _map(path: Path) -> _Mapped | None:
    """The voxels (C, D, H, W) as stored, slope, intercept and affine; None if the file is compressed."""
    if _is_gzip(path):
        return None
    header = _read_header(path)
    shape, num_channels, affine = _describe(header, path)
    offset = int(header.get_data_offset())
    values = _map_voxels(path, (num_channels, *shape), _checked_dtype(header, path), offset)
    return values, *_slope_inter(header, path), affine


def _map_pair(path: Path) -> _Mapped | None:
    image = _load_pair(path)
    voxels = Path(image.file_map["image"].filename)
    if _is_gzip(voxels):
        return None
    shape, num_channels, affine = _describe(image.header, path, image.affine)
    proxy = image.dataobj
    values = _map_voxels(voxels, (num_channels, *shape), _checked_dtype(image.header, path), int(proxy.offset))
    return values, float(proxy.slope), float(proxy.inter), affine


def _map_voxels(path: Path, shape: tuple[int, ...], dtype: np.dtype, offset: int) -> np.ndarray:
    try:
        _check_length(path.stat().st_size, shape, dtype, offset, path)
        return np.memmap(path, dtype, "r", offset, shape)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions.") from error


def _check_length(num_bytes: int, shape: tuple[int, ...], dtype: np.dtype, offset: int, path: Path) -> None:
    end = offset + math.prod(shape) * dtype.itemsize
    if num_bytes < end:
        raise ValueError(
            f"{path}: the header says {shape[0]} x {shape[1:]} voxels of {dtype.name}, which end at byte {end}, but "
            f"the file holds {num_bytes} bytes; copy or export the file again."
        )


def _is_gzip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == _GZIP_MAGIC
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); check the path and its permissions.") from error


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
        return kind(data[:size], check=True)
    except (HeaderDataError, ValueError) as error:
        raise ValueError(f"{path}: has an impossible NIfTI header ({error}); export the file again.") from error


def _describe(header: Any, path: Path, affine: np.ndarray | None = None) -> tuple[Shape, int, np.ndarray]:
    shape = tuple(int(n) for n in header.get_data_shape())
    if not shape or min(shape) < 1:
        raise ValueError(f"{path}: has an impossible NIfTI header (dimensions {shape}); export the file again.")
    x, y, z = (*shape, 1, 1)[:3]
    extra = [n for n in shape[3:] if n > 1]
    if len(extra) > 1:
        raise ValueError(f"{path}: has dimensions {shape}; at most one axis (channels) may follow x, y, z: split it.")
    try:
        affine = np.asarray(header.get_best_affine() if affine is None else affine, np.float64)
    except (HeaderDataError, ValueError) as error:
        raise ValueError(f"{path}: has an impossible orientation ({error}); export the file again.") from error
    if not np.isfinite(affine).all() or np.linalg.matrix_rank(affine[:3, :3]) < 3:
        raise ValueError(f"{path}: its affine {affine[:3].tolist()} maps no volume; set a valid sform or qform.")
    return (z, y, x), (extra[0] if extra else 1), affine


def _checked_dtype(header: Any, path: Path) -> np.dtype:
    try:
        dtype = np.dtype(header.get_data_dtype())
    except Exception as error:
        raise ValueError(f"{path}: stores an unknown type of voxel ({error}); export it as float32.") from error
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise ValueError(f"{path}: stores voxels of type {dtype}; export it as float32.")
    return dtype


def _slope_inter(header: Any, path: Path) -> tuple[float, float]:
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


def _is_pair(path: Path) -> bool:
    return path.name.lower().endswith((".hdr", ".img", ".hdr.gz", ".img.gz"))


def _load_pair(path: Path) -> Any:
    try:
        return nib.load(path, mmap=False)
    except (OSError, ImageFileError, HeaderDataError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as .hdr/.img pair ({error}); convert it to .nii.gz.") from error


def _read_pair(path: Path) -> Volume:
    image = _load_pair(path)
    shape, num_channels, affine = _describe(image.header, path, image.affine)
    _checked_dtype(image.header, path)
    try:
        values = np.asarray(image.dataobj.get_unscaled())
    except _BROKEN_GZIP as error:
        raise ValueError(f"{path}: ends before its voxels do ({error}); copy or export it again.") from error
    flat = _scaled(values.ravel(order="F"), float(image.dataobj.slope), float(image.dataobj.inter))
    return Volume(flat.reshape(num_channels, *shape), affine)


def _write_atomically(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
