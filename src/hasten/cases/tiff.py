"""TIFF by tifffile: which pages and samples are channels, which pages are slices, and the voxel sizes."""

from __future__ import annotations

import json
import math
import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hasten.cases.picture import ORIENTATION, TRANSPOSED, lossy, turned
from hasten.cases.types import IN_MM, Shape, Volume, spacing_of
from hasten.files import first_line

TIFF_ENDINGS = (".tif", ".tiff")
_CHANNEL = re.compile(r"_\d{4}$")
_ALPHA = (1, 2)
"""What TIFF's tag ExtraSamples says of a sample that is opacity; any other is a channel."""
_DEPTH = "ZIQ"
"""tifffile's letters for slices, and for pages of which nothing is said."""
_LOSSY = re.compile("O?JPEG|ALT_JPEG|JPEG_?(LOSSY|2000|2000_LOSSY|XL|XL_DNG|XR|XR_NDPI)|APERIO_JP2000_.*|WEBP|LERC")
"""tifffile's names of compressions that may change values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stack:
    """The one image of a file, and the meaning of its axes."""

    path: Path
    series: Any
    axes: str
    """tifffile's letters of the axes that are longer than 1, and always Y and X."""
    lengths: tuple[int, ...]

    @property
    def page(self) -> Any:
        return self.series.keyframe

    @property
    def samples(self) -> list[int]:
        """The samples of a pixel that are channels: all but opacity."""
        return [i for i in range(self.length("S")) if i not in alpha_samples(self.page)]

    @property
    def has_palette(self) -> bool:
        return self.page.photometric == 3 and self.page.colormap is not None

    @property
    def orientation(self) -> int:
        return int(self.page.tags.valueof(ORIENTATION, 1))

    def length(self, letters: str) -> int:
        return math.prod(length for letter, length in zip(self.axes, self.lengths, strict=True) if letter in letters)

    @property
    def num_channels(self) -> int:
        """Channels of the image, in colour where it has a palette."""
        return self.length("C") * (3 if self.has_palette else len(self.samples))

    @property
    def shape(self) -> Shape:
        height, width = self.length("Y"), self.length("X")
        return (self.length(_DEPTH), *((width, height) if self.orientation in TRANSPOSED else (height, width)))


def is_stack(path: Path) -> bool:
    """Whether a file is a TIFF of several slices. Raises ValueError for a TIFF that can't be read."""
    return path.name.lower().endswith(TIFF_ENDINGS) and read_tiff_header(path)[0][0] > 1


def read_tiff(path: Path, *, indices: bool = False) -> Volume:
    """Read a TIFF as (C, D, H, W).

    The voxels are those that `tifffile.imread` gives, upright; bits and float16 are widened. Samples and what the file
    calls channels are channels, the former the faster; opacity is left out. Pages of which nothing is said are slices.
    The voxel sizes of several slices, where ImageJ's or OME's description states units, make the affine (in mm, no
    rotation, no origin), but those of a `spacing_file` come before them; it is the identity otherwise. `indices` reads
    a label map: a colour-mapped page as its indices, and no lossy compression. Raises ValueError for time series, for
    axes that may be either, and for pages of different size or type.
    """
    with open_tiff(path) as tiff:
        stack = _stack_of(tiff, path)
        if indices and _LOSSY.fullmatch(stack.page.compression.name):
            raise lossy(path, stack.page.compression.name)
        array = _voxels(stack)
        affine = _affine_of(stack, tiff)
        palette = None if indices or not stack.has_palette else np.asarray(stack.page.colormap)
        samples, orientation = stack.samples, stack.orientation
    if palette is not None:
        array = np.moveaxis((palette >> 8).astype(np.uint8)[:, array[:, 0]], 0, 1)
    elif len(samples) < array.shape[1]:
        array = array[:, samples]
    return Volume(turned(array.reshape(-1, *array.shape[2:]), orientation), affine)


def read_tiff_header(path: Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (D, H, W), number of channels and (4, 4) affine, decoding no pixel. Raises what `read_tiff` raises."""
    with open_tiff(path) as tiff:
        stack = _stack_of(tiff, path)
        return stack.shape, stack.num_channels, _affine_of(stack, tiff)


@contextmanager
def open_tiff(path: Path) -> Iterator[Any]:
    """tifffile's object for a TIFF. Raises ValueError for a cut list of pages, of which tifffile reads the start."""
    import tifffile

    try:
        tiff = tifffile.TiffFile(path)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: does not exist; check the path.") from error
    except Exception as error:  # any error of a damaged file
        raise ValueError(f"{path}: cannot be read as a TIFF ({first_line(error)}); check or convert it.") from error
    with tiff:
        try:
            whole = _ends_with_last_page(tiff)
        except Exception as error:  # any error of a damaged directory
            raise ValueError(f"{path}: is damaged or cut short ({first_line(error)}); copy it again.") from error
        if not whole:
            raise ValueError(f"{path}: ends inside its list of pages; copy or export it again.")
        yield tiff


def _ends_with_last_page(tiff: Any) -> bool:
    """Whether the last page that tifffile found says that it is the last."""
    last, form, file = tiff.pages[len(tiff.pages) - 1], tiff.tiff, tiff.filehandle
    file.seek(last.offset)
    (count,) = struct.unpack(form.tagnoformat, file.read(form.tagnosize))
    file.seek(last.offset + form.tagnosize + count * form.tagsize)
    following = file.read(form.offsetsize)
    return len(following) == form.offsetsize and not any(following)


def alpha_samples(page: Any) -> list[int]:
    """The samples of a page's pixels that are opacity."""
    first = page.samplesperpixel - len(page.extrasamples)
    return [first + i for i, kind in enumerate(page.extrasamples) if kind in _ALPHA]


def data_end(page: Any) -> int:
    """The byte at which the data of a page end."""
    return max(at + size for at, size in zip(page.dataoffsets, page.databytecounts, strict=True))


def _stack_of(tiff: Any, path: Path) -> _Stack:
    try:
        every = tiff.series
        series, first = every[0], every[0].keyframe
        described = list(zip(series.get_axes(False), series.get_shape(False), strict=True))
    except Exception as error:  # any error of a damaged file
        raise ValueError(f"{path}: its pages can't be read ({first_line(error)}); save it again.") from error
    if len(every) > 1:
        two = " and ".join(f"{each.shape} {each.dtype}" for each in every[:2])
        raise ValueError(
            f"{path}: holds {len(every)} images, of {two}; a volume needs pages of one image, size and type: save "
            "the others apart."
        )
    kinds = {"imagej": tiff.is_imagej, "ome": "<OME" in first.description[:2000]}
    wrong_kind = any(is_described and series.kind != kind for kind, is_described in kinds.items())
    if wrong_kind or not _holds_all_pages(series, tiff):
        raise ValueError(
            f"{path}: its description does not fit its {len(tiff.pages)} pages; save the whole stack as one file again."
        )
    if first.dtype is None or first.dtype.kind not in "biuf":
        kind = first.dtype or f"{first.bitspersample} bits"
        raise ValueError(f"{path}: stores voxels of {kind}; save it as float32 or an integer type.")
    axes = [(letter, int(length)) for letter, length in described if length > 1 or letter in "YX"]
    letters = "".join(letter for letter, _ in axes)
    depths = sum(letter in _DEPTH for letter in letters)
    if depths > 1 or not set(letters) <= {*"CSYX", *_DEPTH} or len(set(letters)) < len(letters):
        raise ValueError(
            f"{path}: has the axes {letters} of {' x '.join(str(length) for _, length in axes)}; a volume has rows and "
            "columns, and at most slices and channels: save each frame of a time series as a file of its own, and name "
            "the axes (in Python tifffile.imwrite(path, array, photometric='minisblack', metadata={'axes': 'ZCYX'}))."
        )
    return _Stack(path=path, series=series, axes=letters, lengths=tuple(length for _, length in axes))


def _holds_all_pages(series: Any, tiff: Any) -> bool:
    if series.dataoffset is None and len(series.pages) * math.prod(series.keyframe.shaped) != series.size:
        return False
    return series.kind != "ome" or all(page is not None and page.parent is tiff for page in series.pages)


def _voxels(stack: _Stack) -> np.ndarray:
    """(groups, samples, D, H, W): groups are channels that are no samples."""
    page, size = stack.page, stack.series.parent.filehandle.size
    try:
        end = max(data_end(each) for each in stack.series.pages if each is not None)
        if stack.series.dataoffset is not None:
            end = stack.series.dataoffset + stack.series.size * page.dtype.itemsize
        if end > size:
            raise ValueError(f"the file is cut short: {size} bytes of at least {end}")
        array = stack.series.asarray(maxworkers=1).reshape(stack.lengths)
    except Exception as error:  # codecs have errors of their own, and so has one that is missing
        raise ValueError(
            f"{stack.path}: its {page.compression.name} data can't be decoded ({first_line(error)}); check it, or save "
            "it without compression."
        ) from error
    widened = {"bool": np.uint8, "float16": np.float32}.get(page.dtype.name, page.dtype.newbyteorder("="))
    groups = ("C", "S", _DEPTH, "Y", "X")
    order = [at for letters in groups for at, letter in enumerate(stack.axes) if letter in letters]
    shape = [stack.length(letters) for letters in groups]
    return np.ascontiguousarray(array.transpose(order).reshape(shape), widened)


def read_pixel_size(path: Path) -> tuple[float, float, float] | None:
    """The size of a voxel (D, H, W) in mm that a TIFF states, also one of a single slice; None where it states none."""
    with open_tiff(path) as tiff:
        affine = _stated_sizes(_stack_of(tiff, path), tiff)
    return None if np.array_equal(affine, np.eye(4)) else spacing_of(affine)


def _affine_of(stack: _Stack, tiff: Any) -> np.ndarray:
    return np.eye(4) if stack.shape[0] == 1 else _stated_sizes(stack, tiff)


def _stated_sizes(stack: _Stack, tiff: Any) -> np.ndarray:
    beside = spacing_file(stack.path)
    stated = None if beside is None else _stated_affine(beside)
    if stated is not None:
        return stated
    flat = stack.shape[0] == 1
    if tiff.is_imagej:
        return _imagej_affine(tiff.imagej_metadata, stack.page, flat)
    return _ome_affine(tiff.ome_metadata, flat) if tiff.is_ome else np.eye(4)


def _imagej_affine(fields: dict[str, Any], page: Any, flat: bool) -> np.ndarray:
    """The resolution counts only where the description names its unit: elsewhere it is that of a printer."""
    x, y = (1 / value if value > 0 else 1.0 for value in page.resolution)
    shared = fields.get("unit", "")
    units = [str(fields.get(name, shared)).lower() for name in ("unit", "yunit", "zunit")]
    return _affine([x, y, abs(_finite_or_zero(fields.get("spacing", 1))) or 1.0], units, flat)


def _ome_affine(description: str, flat: bool) -> np.ndarray:
    root = ElementTree.fromstring(description.strip("\0 \n").encode())
    pixels = next(each for each in root.iter() if each.tag.rpartition("}")[2] == "Pixels")
    return _affine(
        [_finite_or_zero(pixels.get(f"PhysicalSize{axis}")) for axis in "XYZ"],
        [pixels.get(f"PhysicalSize{axis}Unit", "µm").lower() for axis in "XYZ"],
        flat,
    )


def _affine(sizes: list[float], units: list[str], flat: bool) -> np.ndarray:
    """Voxel sizes (x, y, z) as an affine in mm; the identity where a size or its unit is missing.

    A slice that is `flat` is as thick as its pixels are wide.
    """
    if flat:
        sizes, units = [*sizes[:2], sizes[0]], [*units[:2], units[0]]
    lengths = [size * IN_MM[unit] for size, unit in zip(sizes, units, strict=True) if size > 0 and unit in IN_MM]
    return np.diag([*lengths, 1.0]) if len(lengths) == 3 else np.eye(4)


def _finite_or_zero(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if math.isfinite(number) else 0.0


def spacing_file(path: Path) -> Path | None:
    """The NAME.json with the spacing of NAME.tif or NAME_0000.tif, as nnU-Net keeps it, if there is one."""
    if not path.name.lower().endswith(TIFF_ENDINGS):
        return None
    beside = path.with_name(f"{_CHANNEL.sub('', path.stem)}.json")
    return beside if beside.is_file() else None


def _stated_affine(path: Path) -> np.ndarray | None:
    """Affine of `{"spacing": [D, H, W]}` in mm; None if the file has no such key. Raises ValueError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        spacing = content.get("spacing") if isinstance(content, dict) else None
        if spacing is None:
            return None
        depth, height, width = map(float, spacing)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: can't be read as the spacing of a TIFF ({error}); correct or remove it.") from error
    if not 0 < min(depth, height, width) <= max(depth, height, width) < math.inf:
        raise ValueError(f'{path}: "spacing" is {spacing}; state three lengths in mm, (D, H, W), as in [3, 0.5, 0.5].')
    return np.diag([width, height, depth, 1.0])
