"""2-D images (PNG, JPEG, BMP) by Pillow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from hasten.cases.types import Shape, Volume
from hasten.files import replacing

PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp")
_GRAY = {"1", "L", "I", "I;16", "I;16L", "I;16B", "I;16N", "F"}
_UNREADABLE = (OSError, SyntaxError, Image.DecompressionBombError, TypeError, KeyError, EOFError)
ORIENTATION = 274
"""Tag of EXIF and TIFF: how a picture is to be turned, 1 (as it is stored) to 8."""
TRANSPOSED = (5, 6, 7, 8)
"""Orientations that exchange height and width."""
_NO_COLOUR = {"CMYK": "inks (CMYK)", "LAB": "lightness (LAB)", "HSV": "hues (HSV)"}
_LOSSY = {"JPEG", "MPO", "JPEG2000", "WEBP", "AVIF"}
"""Pillow's names of formats that may change values."""


def read_picture(path: Path, *, indices: bool = False) -> Volume:
    """Read a picture as (C, 1, H, W), affine identity: gray C = 1, colour C = 3, alpha dropped, 16-bit gray kept.

    `indices` reads a label map: it takes the palette index instead of its colour, which is how label maps are stored as
    colour-mapped PNG, and refuses lossy compression. Raises ValueError for a file that is no picture, has several pages
    or would lose bits.
    """
    with _open_picture(path) as picture:
        return Volume(_pixels(picture, path, indices=indices)[:, None], np.eye(4))


def read_picture_header(path: Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (1, H, W), number of channels and identity affine, without decoding the pixels. Raises ValueError."""
    with _open_picture(path) as picture:
        num_channels = 3 if _mode(picture, indices=False) == "RGB" else 1
        return (1, *_size(picture)), num_channels, np.eye(4)


@contextmanager
def _open_picture(path: Path) -> Iterator[Image.Image]:
    """The picture, opened by Pillow; what Pillow raises meanwhile is a ValueError that names the file."""
    try:
        with Image.open(path) as picture:
            _check_kind(picture, path)
            yield picture
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def _pixels(picture: Image.Image, path: Path, *, indices: bool) -> np.ndarray:
    """The pixels (C, H, W), upright and in the file's type. Raises ValueError."""
    if indices and picture.format in _LOSSY:
        raise lossy(path, picture.format)
    orientation = _exif_orientation(picture)  # before the pixels are decoded
    mode = _mode(picture, indices=indices)
    array = np.asarray(picture if picture.mode == mode else picture.convert(mode))
    if mode == "I" and picture.format == "PNG":  # older Pillow widens 16-bit gray PNG
        array = array.astype(np.uint16)
    if array.dtype == bool:
        array = array.astype(np.uint8)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)
    return turned(array, orientation)


def _size(picture: Image.Image) -> tuple[int, int]:
    """The (H, W) of `_pixels`, without decoding the pixels."""
    width, height = picture.size
    return (width, height) if _exif_orientation(picture) in TRANSPOSED else (height, width)


def write_label_picture(path: Path, label: np.ndarray) -> None:
    """Write a label map (1, H, W) as a gray PNG in one rename; 8 bits where the values fit, else 16."""
    kind = np.uint8 if label.max(initial=0) < 256 else np.uint16
    with replacing(path, path.with_name(f".{path.name}.tmp"), durable=False) as file:
        Image.fromarray(label[0].astype(kind)).save(file, format="PNG")


def _mode(picture: Image.Image, *, indices: bool) -> str:
    if picture.mode in _GRAY:
        return picture.mode
    if picture.mode in ("P", "PA"):
        return "P" if indices else "RGB"
    return "L" if picture.mode in ("LA", "La") else "RGB"


def _exif_orientation(picture: Image.Image) -> int:
    """How viewers turn a picture, 1 (as it is stored) to 8; of a PNG, as is stated before its pixels."""
    if picture.format == "PNG" and not {"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"} & set(
        picture.info
    ):
        return 1
    try:
        return int(picture.getexif().get(ORIENTATION, 1))
    except (*_UNREADABLE, ValueError):
        return 1  # viewers ignore damaged EXIF, too; damaged pixels are found when they are decoded


def turned(array: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels (..., H, W) as viewers turn them."""
    if orientation not in range(2, 9):
        return array
    if orientation in TRANSPOSED:
        array = array.swapaxes(-2, -1)
    rows, columns = -1 if orientation in (3, 4, 7, 8) else 1, -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(array[..., ::rows, ::columns])


def _check_kind(picture: Image.Image, path: Path) -> None:
    """Refuse what Pillow decodes to other values without a word."""
    if picture.format == "TIFF":
        raise ValueError(f"{path}: is a TIFF; give its name the ending .tif.")
    num_pages = getattr(picture, "n_frames", 1)
    if num_pages > 1:
        raise ValueError(
            f"{path}: holds {num_pages} pages; save each page as a picture of its own, or the stack as .tif or .nii.gz."
        )
    if picture.mode in _NO_COLOUR:
        raise ValueError(
            f"{path}: stores {_NO_COLOUR[picture.mode]}, whose colours depend on a profile; convert it to RGB."
        )
    if picture.format == "PNG":
        with path.open("rb") as file:
            start = file.read(26)
        if len(start) == 26 and start[24] == 16 and start[25] in (2, 4, 6):
            raise ValueError(
                f"{path}: is 16-bit with colour or alpha, which Pillow cuts to 8 bits; save it as .tif, or one 16-bit "
                "gray file per channel."
            )


def lossy(path: Path, kind: str) -> ValueError:
    """The error for a label map of a compression that may change values."""
    return ValueError(
        f"{path}: is stored as {kind}, whose lossy compression makes up label values; save the label map as PNG, TIFF "
        "without JPEG, or NIfTI, from the source that it was drawn in."
    )


def _unreadable(path: Path, error: Exception) -> ValueError:
    if isinstance(error, FileNotFoundError):
        return ValueError(f"{path}: does not exist; check the path.")
    if isinstance(error, Image.DecompressionBombError):
        return ValueError(f"{path}: has too many pixels to read whole ({error}); cut it into tiles.")
    return ValueError(f"{path}: cannot be read as a picture ({error}); check or convert the file.")
