"""2-D images (PNG, TIFF, JPEG) by Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from hasten.cases.types import Volume

PICTURE_ENDINGS = (".png", ".tif", ".tiff", ".jpg", ".jpeg", ".bmp")
_GRAY = {"1", "L", "I", "I;16", "I;16L", "I;16B", "I;16N", "F"}
_UNREADABLE = (OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError)
Shape = tuple[int, int, int]


def read_picture(path: str | Path, *, indices: bool = False) -> Volume:
    """Read a picture as (C, 1, H, W), affine identity: gray C = 1, colour C = 3, alpha dropped, 16-bit gray kept.

    `indices` takes the palette index instead of its colour, which is how label maps are stored as colour-mapped PNG.
    Raises ValueError for a file that is no picture, has several pages or would lose bits.
    """
    path = Path(path)
    try:
        with Image.open(path) as picture:
            _check(picture, path)
            mode = _mode(picture, indices=indices)
            array = np.asarray(picture if picture.mode == mode else picture.convert(mode))
            if mode == "I" and picture.format == "PNG":  # older Pillow widens 16-bit gray PNG
                array = array.astype(np.uint16)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    if array.dtype == bool:
        array = array.astype(np.uint8)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    channels = array[None] if array.ndim == 2 else np.moveaxis(array, 2, 0)
    return Volume(channels[:, None], np.eye(4))


def read_picture_header(path: str | Path, *, indices: bool = False) -> tuple[Shape, int, np.ndarray]:
    """Shape (1, H, W), number of channels and identity affine, without decoding the pixels. Raises ValueError."""
    path = Path(path)
    try:
        with Image.open(path) as picture:
            _check(picture, path)
            num_channels = 3 if _mode(picture, indices=indices) == "RGB" else 1
            return (1, picture.height, picture.width), num_channels, np.eye(4)
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def write_label_picture(path: Path, label: np.ndarray) -> Path:
    """Write a label map (1, H, W) as a gray PNG in one rename; 8 bits where the values fit, else 16. Returns `path`."""
    kind = np.uint8 if label.max(initial=0) < 256 else np.uint16
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        Image.fromarray(label[0].astype(kind)).save(temporary, format="PNG")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _mode(picture: Image.Image, *, indices: bool) -> str:
    if picture.mode in _GRAY:
        return picture.mode
    if picture.mode in ("P", "PA"):
        return "P" if indices else "RGB"
    return "L" if picture.mode in ("LA", "La") else "RGB"


def _check(picture: Image.Image, path: Path) -> None:
    num_pages = getattr(picture, "n_frames", 1)
    if num_pages > 1:
        raise ValueError(
            f"{path}: holds {num_pages} pages; save each page as a picture of its own, or the stack as .nii.gz."
        )
    if picture.format == "PNG":
        with path.open("rb") as file:
            start = file.read(26)
        # Pillow cuts these to 8 bits without a word.
        if len(start) == 26 and start[24] == 16 and start[25] in (2, 4, 6):
            raise ValueError(f"{path}: is 16-bit with colour or alpha; save one 16-bit gray file per channel.")


def _unreadable(path: Path, error: Exception) -> ValueError:
    if isinstance(error, FileNotFoundError):
        return ValueError(f"{path}: does not exist; check the path.")
    if isinstance(error, Image.DecompressionBombError):
        return ValueError(f"{path}: has too many pixels to read whole ({error}); cut it into tiles.")
    return ValueError(f"{path}: cannot be read as a picture ({error}); check or convert the file.")
