"""TIFF files of several pages: volumes, a page a slice, by Pillow."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from hasten.cases.picture import opened, page_channels, page_pixels
from hasten.cases.tiff_tags import Layout, layout_of, promised_pages
from hasten.cases.types import Shape, Volume

TIFF_ENDINGS = (".tif", ".tiff")
_CHANNEL = re.compile(r"_\d{4}$")


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
        with opened(path) as picture:
            return promised_pages(_description(picture)) > 1
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


def read_stack(path: str | Path, *, indices: bool = False, part: slice = slice(None)) -> Volume:
    """Read a TIFF stack as (C, D, H, W), or a part of its slices (D), and then only their pages.

    Pages are slices in their order, colour is channels, and what an ImageJ hyperstack or OME-TIFF calls channels are
    channels. Their voxel sizes, where they state units, make the affine (in mm, no rotation, no origin), but those of a
    `spacing_file` come before them; it is the identity otherwise, and always that of the whole stack. `indices` reads a
    colour-mapped page as its indices. Raises ValueError for pages of different size or type, named by their number from
    1, and for time series.
    """
    path = Path(path)
    with opened(path) as picture:
        layout = _layout(picture, path, indices)
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


def read_stack_header(path: str | Path, *, indices: bool = False) -> tuple[Shape, int, np.ndarray]:
    """Shape (D, H, W), number of channels and (4, 4) affine, without decoding pixels. Raises ValueError.

    Only the first page's size is looked at; `read_stack` finds the page that differs.
    """
    path = Path(path)
    with opened(path) as picture:
        layout = _layout(picture, path, indices)
        num_channels = layout.groups * page_channels(picture, path, indices=indices)
        return (layout.depth, picture.height, picture.width), num_channels, layout.affine


def _layout(picture: Image.Image, path: Path, indices: bool) -> Layout:
    tags = picture.tag_v2  # type: ignore[attr-defined]
    per_mm = tuple(float(tags.get(tag, 0) or 0) for tag in (282, 283))
    samples = page_channels(picture, path, indices=indices)
    layout = layout_of(_description(picture), count_pages(path), samples, (per_mm[0], per_mm[1]), path)
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
    """Of `{"spacing": [D, H, W]}` in mm; None if the file has no such key. Raises ValueError."""
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
