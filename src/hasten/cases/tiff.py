"""TIFF stacks, a page per slice, read by Pillow; ImageJ and OME descriptions give channels and voxel sizes."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from hasten.cases.picture import open_picture, page_channels, page_pixels, page_size
from hasten.cases.types import IN_MM, Shape, Volume

TIFF_ENDINGS = (".tif", ".tiff")
_CHANNEL = re.compile(r"_\d{4}$")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """What the pages of a stack are."""

    depth: int
    groups: int = 1
    """Channels that are separate pages; a colour page holds several more."""
    channel_first: bool = True
    """Whether the channels of a slice follow each other, or the slices of a channel."""
    affine: np.ndarray

    def page(self, group: int, z: int) -> int:
        """Index of a page."""
        return z * self.groups + group if self.channel_first else group * self.depth + z


def is_stack(path: Path) -> bool:
    """Whether a file is a TIFF of several pages, or one cut short between its pages; False if it is no TIFF."""
    if not path.name.lower().endswith(TIFF_ENDINGS):
        return False
    try:
        if count_pages(path) > 1:
            return True
    except ValueError:
        return True  # its reader raises the error
    except OSError:
        return False
    try:
        with open_picture(path) as picture:
            return _promised_pages(_description(picture)) > 1
    except ValueError:
        return False


def count_pages(path: Path) -> int:
    """Number of pages that a TIFF lists; 1 for a file of another kind.

    Pillow counts them too, but takes the end of a file that was cut for the end of the list. Raises ValueError for a
    list that leaves the file or runs in circles, and OSError.
    """
    with path.open("rb") as file:
        start = file.read(16)
        order = {b"II": "<", b"MM": ">"}.get(start[:2], "")
        layouts = {b"*\0": (4, "H", 12, "I"), b"+\0": (8, "Q", 20, "Q")}  # TIFF and BigTIFF
        variant = layouts.get(start[2:4] if order == "<" else start[3:1:-1])
        if not order or variant is None:
            return 1
        first, counter, entry, pointer = variant
        width, length = struct.calcsize(counter), struct.calcsize(pointer)
        size = file.seek(0, 2)
        (at,) = struct.unpack_from(order + pointer, start.ljust(16, b"\0"), first)
        visited: set[int] = set()
        while at:
            file.seek(min(at, size))
            head = file.read(width)
            after = at + width + entry * struct.unpack(order + counter, head)[0] if len(head) == width else size
            if at in visited or after + length > size:
                raise ValueError(f"{path}: ends inside its list of pages; copy or export it again.")
            visited.add(at)
            file.seek(after)
            (at,) = struct.unpack(order + pointer, file.read(length))
    return max(1, len(visited))


def tiff_directories(file: IO[bytes]) -> Iterator[ImageFileDirectory_v2]:
    """The tags of each page of a TIFF or BigTIFF: one object, filled anew for every page.

    Raises ValueError for a page behind the end of the file, and what Pillow raises for damaged ones.
    """
    size = os.fstat(file.fileno()).st_size
    head = file.read(8)
    if b"+" in head[2:4]:
        head += file.read(8)  # BigTIFF
    tags = ImageFileDirectory_v2(head)
    visited: set[int] = set()
    while tags.next and tags.next not in visited:
        if tags.next >= size:
            raise ValueError("a page begins behind the end of the file")
        visited.add(tags.next)
        file.seek(tags.next)
        tags.load(file)
        yield tags


def read_stack(path: str | Path, *, indices: bool = False, part: slice = slice(None)) -> Volume:
    """Read a TIFF stack as (C, D, H, W), or a part of its slices (D), and then only their pages.

    Pages are slices in their order, colour is channels, and what an ImageJ hyperstack or OME-TIFF calls channels are
    channels. Their voxel sizes, where they state units, make the affine (in mm, no rotation, no origin), but those of a
    `spacing_file` come before them; it is the identity otherwise, and always that of the whole stack. `indices` reads a
    colour-mapped page as its indices. Raises ValueError for pages of different size or type, named by their number from
    1, and for time series.
    """
    path = Path(path)
    with open_picture(path) as picture:
        layout = _read_layout(picture, path, indices=indices)
        depths = range(layout.depth)[part]
        places = {layout.page(group, z): (group, i) for i, z in enumerate(depths) for group in range(layout.groups)}
        array: np.ndarray = np.empty(0)
        first = ""
        for page in sorted(places):  # in file order, as seeking back walks the chain of pages from the start
            picture.seek(page)
            pixels = page_pixels(picture, path, indices=indices)
            if not first:
                first = f"page {page + 1} is {_summary(pixels)}"
                array = np.empty((layout.groups, len(pixels), len(depths), *pixels.shape[1:]), pixels.dtype)
            if (pixels.shape, pixels.dtype) != ((array.shape[1], *array.shape[3:]), array.dtype):
                raise ValueError(
                    f"{path}: page {page + 1} is {_summary(pixels)}, but {first}; a volume needs pages of one size and "
                    "type: save the odd ones apart."
                )
            group, z = places[page]
            array[group, :, z] = pixels
    return Volume(array.reshape(-1, *array.shape[2:]), layout.affine)


def read_stack_header(path: str | Path) -> tuple[Shape, int, np.ndarray]:
    """Shape (D, H, W), number of channels and (4, 4) affine, without decoding pixels. Raises ValueError.

    Only the first page's size is looked at; `read_stack` finds the page that differs.
    """
    path = Path(path)
    with open_picture(path) as picture:
        layout = _read_layout(picture, path, indices=False)
        num_channels = layout.groups * page_channels(picture, path, indices=False)
        return (layout.depth, *page_size(picture, path)), num_channels, layout.affine


def _read_layout(picture: Image.Image, path: Path, *, indices: bool) -> _Layout:
    tags = picture.tag_v2  # type: ignore[attr-defined]
    per_mm = tuple(float(tags.get(tag, 0) or 0) for tag in (282, 283))
    samples = page_channels(picture, path, indices=indices)
    layout = _parse_layout(_description(picture), count_pages(path), samples, (per_mm[0], per_mm[1]), path)
    beside = spacing_file(path)
    stated = None if beside is None else _stated_affine(beside)
    return layout if stated is None else replace(layout, affine=stated)


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


def _description(picture: Image.Image) -> str:
    tags = getattr(picture, "tag_v2", {})
    text = tags.get(270, "")
    if not isinstance(text, str):
        return ""
    raw = text.encode("latin-1", "replace")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return text


def _summary(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1:]} (H, W), {len(pixels)} x {pixels.dtype}"


def _promised_pages(description: str) -> int:
    """The number of pages in a description, which may exceed those that the file lists; 1 if it has none."""
    if not description.startswith("ImageJ="):
        return 1
    return _count(_imagej_fields(description), "images")


def _parse_layout(
    description: str, num_pages: int, samples: int, resolution: tuple[float, float], path: Path
) -> _Layout:
    """The layout of a stack of `num_pages` pages of `samples` channels each; `path` is named in errors.

    `resolution` is pixels per unit along x and y, as in the TIFF tags, 0 if not there; it counts only if the
    description names the unit, as elsewhere it is that of a printer. Raises ValueError for a time series, and for
    pages that don't add up.
    """
    if description.startswith("ImageJ="):
        return _imagej(_imagej_fields(description), num_pages, resolution, path)
    if "<OME" in description[:2000]:
        return _ome(description, num_pages, samples, path)
    return _Layout(depth=num_pages, affine=np.eye(4))


def _imagej(fields: Mapping[str, str], num_pages: int, resolution: tuple[float, float], path: Path) -> _Layout:
    images, channels, frames = (_count(fields, name) for name in ("images", "channels", "frames"))
    _check_frames(frames, path)
    if images > num_pages:
        raise ValueError(
            f"{path}: an ImageJ stack of {images} images that lists {num_pages} pages, as ImageJ writes beyond 4 GB; "
            "save it as OME-TIFF (Bio-Formats) or .nii.gz."
        )
    slices = _count(fields, "slices") if "slices" in fields else num_pages // channels
    _check_pages(slices, channels, num_pages, path)
    x, y = (1 / value if value > 0 else 1.0 for value in resolution)
    try:
        z = abs(float(fields.get("spacing", "1"))) or 1.0
    except ValueError:
        z = 1.0
    shared = fields.get("unit", "")
    units = [IN_MM.get(fields.get(name, shared).lower()) for name in ("unit", "yunit", "zunit")]
    return _Layout(depth=slices, groups=channels, affine=_affine([x, y, z], units))


def _ome(description: str, num_pages: int, samples: int, path: Path) -> _Layout:
    try:
        root = ElementTree.fromstring(description.strip("\0 \n").encode())
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}: its OME-XML can't be parsed ({error}); save the stack again.") from error
    every = [each for each in root.iter() if each.tag.rpartition("}")[2] == "Pixels"]
    if len(every) != 1:
        raise ValueError(f"{path}: its OME-XML describes {len(every)} images; save each as a file of its own.")
    pixels = every[0]
    _check_frames(_count(pixels.attrib, "SizeT"), path)
    slices, channels = _count(pixels.attrib, "SizeZ"), _count(pixels.attrib, "SizeC")
    groups = channels // samples if channels % samples == 0 else channels
    _check_pages(slices, groups, num_pages, path)
    order = pixels.get("DimensionOrder", "XYCZT")
    sizes = [_finite_or_zero(pixels.get(f"PhysicalSize{axis}", "")) for axis in "XYZ"]
    units = [IN_MM.get(pixels.get(f"PhysicalSize{axis}Unit", "µm").lower()) for axis in "XYZ"]
    layout = _Layout(
        depth=slices, groups=groups, channel_first=order.find("C") < order.find("Z"), affine=_affine(sizes, units)
    )
    for block in (each for each in pixels if each.tag.rpartition("}")[2] == "TiffData"):
        group = _count(block.attrib, "FirstC", 0) // (channels // groups)
        page = layout.page(group, _count(block.attrib, "FirstZ", 0))
        if "IFD" in block.attrib and _count(block.attrib, "IFD", 0) != page:
            raise ValueError(f"{path}: its OME-XML puts the pages out of order; save the stack again.")
    return layout


def _affine(sizes: list[float], units: list[float | None]) -> np.ndarray:
    """Voxel sizes as an affine in mm; the identity where a size or its unit is missing."""
    lengths = [size * unit for size, unit in zip(sizes, units, strict=True) if size > 0 and unit]
    return np.diag([*lengths, 1.0]) if len(lengths) == 3 else np.eye(4)


def _check_frames(frames: int, path: Path) -> None:
    if frames > 1:
        raise ValueError(
            f"{path}: is a time series of {frames} frames; save each frame as a file of its own, or, if the frames are "
            "slices, change that in the stack's properties (ImageJ: Image > Properties)."
        )


def _check_pages(slices: int, channels: int, num_pages: int, path: Path) -> None:
    if slices * channels != num_pages:
        raise ValueError(
            f"{path}: its description speaks of {slices} slices x {channels} channels, but it holds {num_pages} pages; "
            "save the whole stack as one file again."
        )


def _imagej_fields(description: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in description.splitlines())
    return {name.strip(): value.strip("\0 ") for name, equals, value in pairs if equals}


def _count(fields: Mapping[str, str], name: str, least: int = 1) -> int:
    try:
        return max(least, int(fields.get(name, least)))
    except ValueError:
        return least


def _finite_or_zero(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
