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
_WIDENED: dict[str, np.dtype[Any]] = {"bool": np.dtype(np.uint8), "float16": np.dtype(np.float32)}
_DEPTH = "ZIQ"
"""tifffile's letters for slices, and for pages of which nothing is said."""
_LOSSY = (
    "OJPEG", "JPEG", "JPEG_LOSSY", "ALT_JPEG", "JPEG2000", "JPEG_2000_LOSSY", "APERIO_JP2000_YCBC", "APERIO_JP2000_RGB",
    "WEBP", "JPEGXL", "JPEGXL_DNG", "JPEGXR", "JPEGXR_NDPI", "LERC",
)  # fmt: skip
"""tifffile's names of compressions that may change values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stack:
    """The one image of a file, and what its pages are."""

    path: Path
    series: Any
    lead: tuple[tuple[str, int], ...]
    """tifffile's letter and the length of each axis, longer than 1, that runs over pages."""

    @property
    def page(self) -> Any:
        return self.series.keyframe

    @property
    def samples(self) -> list[int]:
        """The samples of a pixel that are channels: all but opacity."""
        return [i for i in range(self.page.samplesperpixel) if i not in alpha_samples(self.page)]

    @property
    def has_palette(self) -> bool:
        return self.page.photometric == 3 and self.page.colormap is not None

    @property
    def orientation(self) -> int:
        return int(self.page.tags.valueof(ORIENTATION, 1))

    def length(self, letters: str) -> int:
        return math.prod(length for letter, length in self.lead if letter in letters)

    @property
    def depth(self) -> int:
        return self.length(_DEPTH) * int(self.page.shaped[1])

    @property
    def num_channels(self) -> int:
        """Channels of the image, in colour where it has a palette."""
        return self.length("C") * (3 if self.has_palette else len(self.samples))

    @property
    def shape(self) -> Shape:
        height, width = self.page.shaped[2:4]
        return (self.depth, *((width, height) if self.orientation in TRANSPOSED else (height, width)))


def is_stack(path: Path) -> bool:
    """Whether a file is a TIFF of several slices. Raises ValueError for a TIFF that can't be read."""
    return path.name.lower().endswith(TIFF_ENDINGS) and read_tiff_header(path)[0][0] > 1


def read_tiff(path: str | Path, *, indices: bool = False, part: slice = slice(None)) -> Volume:
    """Read a TIFF as (C, D, H, W), or a part of its slices (D), and then only their pages.

    The voxels are those that `tifffile.imread` gives, upright; bits and float16 are widened. Samples and what the file
    calls channels are channels, the former the faster; opacity is left out. Pages of which nothing is said are slices.
    The voxel sizes of several slices, where ImageJ's or OME's description states units, make the affine (in mm, no
    rotation, no origin), but those of a `spacing_file` come before them; it is the identity otherwise, and always that
    of the whole stack. `indices` reads a label map: a colour-mapped page as its indices, and no lossy compression.
    Raises ValueError for time series, for axes that may be either, and for pages of different size or type, named by
    their number from 1.
    """
    path = Path(path)
    with open_tiff(path) as tiff:
        stack = _stack_of(tiff, path)
        if indices and stack.page.compression.name in _LOSSY:
            raise lossy(path, stack.page.compression.name)
        array = _voxels(stack, part)
        affine = _affine_of(stack, tiff)
        palette = None if indices or not stack.has_palette else np.asarray(stack.page.colormap)
        samples, orientation = stack.samples, stack.orientation
    if palette is not None:
        array = np.moveaxis((palette >> 8).astype(np.uint8)[:, array[:, 0]], 0, 1)
    elif len(samples) < array.shape[1]:
        array = array[:, samples]
    return Volume(turned(array.reshape(-1, *array.shape[2:]), orientation), affine)


def read_tiff_header(path: str | Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (D, H, W), number of channels and (4, 4) affine, decoding no pixel. Raises what `read_tiff` raises."""
    path = Path(path)
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
        axes = list(zip(series.get_axes(False), series.get_shape(False), strict=True))
    except Exception as error:  # any error of a damaged file
        raise ValueError(f"{path}: its pages can't be read ({first_line(error)}); save it again.") from error
    if len(every) > 1:
        _refuse_several(tiff, path)
    described = {"imagej": tiff.is_imagej, "ome": "<OME" in first.description[:2000]}
    if any(is_described and series.kind != kind for kind, is_described in described.items()):
        raise _misfit(tiff, path)
    if first.dtype is None or first.dtype.kind not in "biuf":
        kind = first.dtype or f"{first.bitspersample} bits"
        raise ValueError(f"{path}: stores voxels of {kind}; save it as float32 or an integer type.")
    inner = "YXSZ" if first.shaped[1] > 1 else "YXS"
    lead = tuple((letter, int(length)) for letter, length in axes if length > 1 and letter not in inner)
    stack = _Stack(path=path, series=series, lead=lead)
    _check_axes(stack)
    _check_pages(stack, tiff)
    return stack


def _check_axes(stack: _Stack) -> None:
    letters = [letter for letter, _ in stack.lead]
    pages = math.prod(length for _, length in stack.lead)
    if math.prod(stack.series.get_shape(False)) != pages * math.prod(stack.page.shaped):
        raise ValueError(
            f"{stack.path}: calls its axes {stack.series.get_axes(False)}, but its pages are {stack.page.shaped[2:4]} "
            "(H, W); save the array with rows and columns as its last axes (in Python tifffile.imwrite(path, "
            "numpy.moveaxis(array, -1, 0), photometric='minisblack', metadata={'axes': 'CYX'}))."
        )
    if "T" in letters:
        raise ValueError(
            f"{stack.path}: is a time series of {stack.length('T')} frames; save each frame as a file of its own, or, "
            "if the frames are slices, change that in the stack's properties (ImageJ: Image > Properties)."
        )
    deep = sum(letter in _DEPTH for letter in letters) + (stack.page.shaped[1] > 1)
    if deep > 1 or not set(letters) <= {"C", *_DEPTH}:
        shape = " x ".join(str(length) for _, length in stack.lead)
        raise ValueError(
            f"{stack.path}: holds {shape} pages, and does not say which axis is channels and which is slices; save it "
            "with its axes named (in Python tifffile.imwrite(path, array, photometric='minisblack', "
            "metadata={'axes': 'ZCYX'}))."
        )


def _check_pages(stack: _Stack, tiff: Any) -> None:
    needed, pages = math.prod(length for _, length in stack.lead), stack.series.pages
    missing = stack.series.dataoffset is None and len(pages) != needed
    if missing or (stack.series.kind == "ome" and any(page is None or page.parent is not tiff for page in pages)):
        raise _misfit(tiff, stack.path)


def _misfit(tiff: Any, path: Path) -> ValueError:
    return ValueError(
        f"{path}: its description does not fit its {len(tiff.pages)} pages; save the whole stack as one file again."
    )


def _refuse_several(tiff: Any, path: Path) -> None:
    def summary(page: Any) -> str:
        return f"{page.shaped[2:4]} (H, W), {page.shaped[0] * page.shaped[4]} x {page.dtype}"

    first = summary(tiff.pages[0])
    odd = next(((number, summary(page)) for number, page in enumerate(tiff.pages, 1) if summary(page) != first), None)
    what = f"page {odd[0]} is {odd[1]}, but page 1 is {first}" if odd else f"it describes {len(tiff.series)} images"
    raise ValueError(f"{path}: {what}; a volume needs pages of one image, size and type: save the others apart.")


def _voxels(stack: _Stack, part: slice) -> np.ndarray:
    """The samples of the slices of `part`, (groups, samples, D, H, W): groups are channels on pages of their own."""
    page = stack.page
    numbers = np.arange(math.prod(length for _, length in stack.lead)).reshape([length for _, length in stack.lead])
    if [letter for letter, _ in stack.lead][1:] == ["C"]:
        numbers = numbers.T
    numbers = numbers.reshape(stack.length("C"), -1)
    separate, thick, height, width, contiguous = page.shaped
    if thick == 1:
        numbers = numbers[:, part]
    kind: np.dtype[Any] = _WIDENED.get(page.dtype.name, page.dtype.newbyteorder("="))
    out = np.empty((*numbers.shape, separate, contiguous, thick, height, width), kind)
    try:
        mapped = _mapped(stack)
        for at, number in np.ndenumerate(numbers):
            pixels = _decoded(stack, int(number)) if mapped is None else mapped[number]
            out[at] = np.moveaxis(pixels.reshape(page.shaped), 4, 1)
    except Exception as error:  # codecs have errors of their own, and so has one that is missing
        raise ValueError(
            f"{stack.path}: its {page.compression.name} data can't be decoded ({first_line(error)}); check it, or save "
            "it without compression."
        ) from error
    # Of pages and thick one is 1.
    samples = np.moveaxis(out, 1, 3).reshape(len(numbers), separate * contiguous, -1, height, width)
    return samples if thick == 1 else samples[:, :, part]


def _decoded(stack: _Stack, number: int) -> np.ndarray:
    page = stack.series.pages[number]
    size = stack.series.parent.filehandle.size
    if data_end(page) > size:
        raise ValueError(f"the file is cut short: {size} bytes of at least {data_end(page)}")
    pixels: np.ndarray = page.asarray(maxworkers=1)
    return pixels


def _mapped(stack: _Stack) -> np.ndarray | None:
    """The pages (N, ...) of a file that holds them in one piece, without reading them; None for others."""
    if stack.series.dataoffset is None:
        return None
    kind = stack.series.parent.byteorder + stack.page.dtype.char
    pages = (-1, *stack.page.shaped)
    count = math.prod(length for _, length in stack.lead) * math.prod(stack.page.shaped)
    return np.memmap(stack.path, kind, "r", stack.series.dataoffset, (count,)).reshape(pages)


def read_pixel_size(path: Path) -> tuple[float, float, float] | None:
    """The size of a voxel (D, H, W) in mm that a TIFF states, also one of a single slice; None where it states none."""
    with open_tiff(path) as tiff:
        affine = _stated_sizes(_stack_of(tiff, path), tiff)
    return None if np.array_equal(affine, np.eye(4)) else spacing_of(affine)


def _affine_of(stack: _Stack, tiff: Any) -> np.ndarray:
    return np.eye(4) if stack.depth == 1 else _stated_sizes(stack, tiff)


def _stated_sizes(stack: _Stack, tiff: Any) -> np.ndarray:
    beside = spacing_file(stack.path)
    stated = None if beside is None else _stated_affine(beside)
    if stated is not None:
        return stated
    flat = stack.depth == 1
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
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as the spacing of a TIFF ({error}); correct or remove it.") from error
    spacing = content.get("spacing") if isinstance(content, dict) else None
    if spacing is None:
        return None
    if not isinstance(spacing, list) or len(spacing) != 3 or not all(_is_length(each) for each in spacing):
        raise ValueError(
            f'{path}: "spacing" is {spacing!r}; state three lengths in mm, (D, H, W), as in [3, 0.5, 0.5].'
        )
    return np.diag([*(float(each) for each in reversed(spacing)), 1.0])


def _is_length(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
