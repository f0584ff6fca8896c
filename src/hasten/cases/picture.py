"""2-D images (PNG, TIFF, JPEG) by Pillow."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from hasten.cases.types import Shape, Volume
from hasten.files import replacing

PICTURE_ENDINGS = (".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp")
_GRAY = {"1", "L", "I", "I;16", "I;16L", "I;16B", "I;16N", "F"}
_DAMAGED = (TypeError, KeyError, EOFError, struct.error)  # what Pillow trips over in a damaged TIFF
_UNREADABLE = (OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError, *_DAMAGED)
_PHOTOMETRIC = 262
"""TIFF tag: 0 where the value 0 is white (MinIsWhite)."""
ORIENTATION = 274
"""Tag of EXIF and TIFF: how a picture is to be turned, 1 (as it is stored) to 8."""
_TRANSPOSED = (5, 6, 7, 8)
"""Orientations that exchange height and width."""
_SIGNED = 2
_LOSSY = {"jpeg", "tiff_jpeg", "mpo", "jpeg2000", "webp", "avif"}
"""Pillow's names of formats, and of compressions in a TIFF, that may change values."""


def read_picture(path: str | Path, *, indices: bool = False) -> Volume:
    """Read a picture as (C, 1, H, W), affine identity: gray C = 1, colour C = 3, alpha dropped, 16-bit gray kept.

    `indices` reads a label map: it takes the palette index instead of its colour, which is how label maps are stored as
    colour-mapped PNG, and refuses lossy compression. Raises ValueError for a file that is no picture, has several pages
    (`hasten.cases.tiff` reads those) or would lose bits.
    """
    path = Path(path)
    with open_picture(path) as picture:
        _check_one_page(picture, path)
        return Volume(page_pixels(picture, path, indices=indices)[:, None], np.eye(4))


def read_picture_header(path: str | Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (1, H, W), number of channels and identity affine, without decoding the pixels. Raises ValueError."""
    path = Path(path)
    with open_picture(path) as picture:
        _check_one_page(picture, path)
        num_channels = page_channels(picture, path, indices=False)
        return (1, *page_size(picture, path)), num_channels, np.eye(4)


@contextmanager
def open_picture(path: Path) -> Iterator[Image.Image]:
    """The picture, opened by Pillow; what Pillow raises meanwhile is a ValueError that names the file."""
    try:
        with Image.open(path) as picture:
            yield picture
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def page_pixels(picture: Image.Image, path: Path, *, indices: bool) -> np.ndarray:
    """The pixels of the page that `picture` is at, (C, H, W), upright and in the file's type. Raises ValueError."""
    _check_bits(picture, path)
    if indices:
        _check_lossless(picture, path)
    if picture.format == "TIFF" and picture.tag_v2.get(ORIENTATION, 1) in _TRANSPOSED:  # type: ignore[attr-defined]
        # Without a name Pillow does not map the file, for which it exchanges the sides too early.
        picture.filename = ""  # type: ignore[attr-defined]
    mode = _mode(picture, indices=indices)
    array = np.asarray(picture if picture.mode == mode else picture.convert(mode))
    if _inverted(picture):
        array = ~array  # True and False, or 0 to 255
    if mode == "I" and picture.format == "PNG":  # older Pillow widens 16-bit gray PNG
        array = array.astype(np.uint16)
    if array.dtype == bool:
        array = array.astype(np.uint8)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if picture.format == "TIFF" and array.ndim == 2:
        array = _restore_dtype(array, *_sample(picture))
    if picture.format != "TIFF":  # which Pillow turns itself
        array = _turned(array, _exif_orientation(picture))
    return array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)


def page_channels(picture: Image.Image, path: Path, *, indices: bool) -> int:
    """The C of `page_pixels`, without decoding the pixels. Raises ValueError."""
    _check_bits(picture, path)
    return 3 if _mode(picture, indices=indices) == "RGB" else 1


def page_size(picture: Image.Image, path: Path) -> tuple[int, int]:
    """The (H, W) of `page_pixels`, without decoding the pixels."""
    width, height = picture.size
    orientation = 1
    if picture.format == "TIFF":  # of which Pillow's size is the turned one in some versions only
        tags = picture.tag_v2  # type: ignore[attr-defined]
        width, height, orientation = tags[256], tags[257], tags.get(ORIENTATION, 1)
    elif picture.format != "PNG" or _may_have_exif(picture, path):
        orientation = _exif_orientation(picture)
    return (width, height) if orientation in _TRANSPOSED else (height, width)


def write_label_picture(path: Path, label: np.ndarray) -> Path:
    """Write a label map (1, H, W) as a gray PNG in one rename; 8 bits where the values fit, else 16. Returns `path`."""
    kind = np.uint8 if label.max(initial=0) < 256 else np.uint16
    with replacing(path, path.with_name(f".{path.name}.tmp"), durable=False) as file:
        Image.fromarray(label[0].astype(kind)).save(file, format="PNG")
    return path


def _mode(picture: Image.Image, *, indices: bool) -> str:
    if picture.mode in _GRAY:
        return picture.mode
    if picture.mode in ("P", "PA"):
        return "P" if indices else "RGB"
    return "L" if picture.mode in ("LA", "La") else "RGB"


def _exif_orientation(picture: Image.Image) -> int:
    """How viewers turn a picture, 1 (as it is stored) to 8. May decode a PNG."""
    try:
        return int(picture.getexif().get(ORIENTATION, 1))
    except (*_UNREADABLE, ValueError):
        return 1  # viewers ignore damaged EXIF, too; damaged pixels are found when they are decoded


def _may_have_exif(picture: Image.Image, path: Path) -> bool:
    """Whether a PNG may state an orientation, which is also allowed behind its pixels."""
    if {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"} & picture.info.keys():
        return True
    behind = False
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8:
            length, kind = struct.unpack(">I4s", head)
            behind = behind or kind == b"IDAT"
            if behind and kind in (b"eXIf", b"tEXt", b"zTXt", b"iTXt"):
                return True
            file.seek(length + 4, 1)
    return False


def _turned(array: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels (H, W) or (H, W, C) as viewers turn them."""
    if orientation not in range(2, 9):
        return array
    if orientation in _TRANSPOSED:
        array = array.swapaxes(0, 1)
    rows, columns = -1 if orientation in (3, 4, 7, 8) else 1, -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(array[::rows, ::columns])


def _check_one_page(picture: Image.Image, path: Path) -> None:
    num_pages = getattr(picture, "n_frames", 1)
    if num_pages > 1:
        raise ValueError(
            f"{path}: holds {num_pages} pages; save each page as a picture of its own, or the stack as .tif or .nii.gz."
        )


def _check_bits(picture: Image.Image, path: Path) -> None:
    """Refuse what Pillow decodes to other values without a word."""
    if picture.format == "PNG":
        with path.open("rb") as file:
            start = file.read(26)
        if len(start) == 26 and start[24] == 16 and start[25] in (2, 4, 6):
            raise ValueError(f"{path}: is 16-bit with colour or alpha; save one 16-bit gray file per channel.")
    if picture.format == "TIFF":
        bits, kind = _sample(picture)
        if bits > 8 and len(picture.getbands()) > 1:
            raise ValueError(f"{path}: is {bits}-bit with colour or alpha; save one {bits}-bit gray file per channel.")
        compressed = picture.info.get("compression", "raw") != "raw"
        if compressed and picture.tag_v2.prefix == b"MM" and (bits > 16 or (bits, kind) == (16, _SIGNED)):  # type: ignore[attr-defined]
            raise ValueError(
                f"{path}: is a big-endian, compressed TIFF of {bits}-bit voxels, whose bytes Pillow mixes up; "
                "save it without compression, or as .nii.gz."
            )


def _check_lossless(picture: Image.Image, path: Path) -> None:
    kinds = (str(picture.format), str(picture.info.get("compression", "")))
    for kind in kinds:
        if kind.lower() in _LOSSY:
            raise ValueError(
                f"{path}: is stored as {kind.upper()}, whose lossy compression makes up label values; "
                "save the label map as PNG, TIFF without JPEG, or NIfTI, from the source that it was drawn in."
            )


def _sample(picture: Image.Image) -> tuple[int, int]:
    """Bits of a sample and their meaning (1 unsigned, 2 signed, 3 floating point) of a TIFF page."""
    return _sample_type(picture.tag_v2)  # type: ignore[attr-defined]


def _sample_type(tags: Mapping[int, Any]) -> tuple[int, int]:
    return int(np.max(tags.get(258, 1))), int(np.max(tags.get(339, 1)))


def _inverted(picture: Image.Image) -> bool:
    """Whether Pillow inverts the values of a TIFF page: those of MinIsWhite, 0 without the tag, with up to 8 bits."""
    if picture.format != "TIFF" or picture.mode not in ("1", "L") or picture.info.get("compression") == "tiff_jpeg":
        return False
    return bool(picture.tag_v2.get(_PHOTOMETRIC, 0) == 0)  # type: ignore[attr-defined]


def _restore_dtype(array: np.ndarray, bits: int, kind: int) -> np.ndarray:
    """What Pillow widens, or takes for signed or unsigned, in the type that the file states."""
    if kind == _SIGNED and bits == 8 and array.dtype == np.uint8:
        return array.view(np.int8)
    if kind == _SIGNED and bits == 16 and array.dtype == np.int32:
        return array.astype(np.int16)
    return array.view(np.uint32) if kind == 1 and bits == 32 and array.dtype == np.int32 else array


def _unreadable(path: Path, error: Exception) -> ValueError:
    if isinstance(error, FileNotFoundError):
        return ValueError(f"{path}: does not exist; check the path.")
    if isinstance(error, Image.DecompressionBombError):
        return ValueError(
            f"{path}: has too many pixels to read whole ({error}); cut it into tiles, or to "
            "predict it save it as .tif, which is read in parts."
        )
    kind = _tiff_type(path)
    if kind is not None:
        other = "float32" if kind.startswith("float") else "int32, or a label map as uint8 or uint16"
        return ValueError(
            f"{path}: is a TIFF of {kind} voxels, which Pillow can't read; save it as {other} (in Python "
            "tifffile.imwrite(path, array.astype(type))), or as .nii.gz."
        )
    return ValueError(f"{path}: cannot be read as a picture ({error}); check or convert the file.")


def _tiff_type(path: Path) -> str | None:
    """The type of a TIFF's voxels if Pillow has none for it: 64 bits, or float16; None for other files."""
    from hasten.cases.tiff import tiff_directories

    try:
        with path.open("rb") as file:
            tags = next(tiff_directories(file))
        bits, kind = _sample_type(tags)
    except (*_UNREADABLE, ValueError, StopIteration):
        return None
    name = {1: "uint", 2: "int", 3: "float"}.get(kind)
    return f"{name}{bits}" if name and (bits > 32 or (bits, kind) == (16, 3)) else None
