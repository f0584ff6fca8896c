"""Parses the TIFF descriptions of ImageJ and OME: slice and channel of each page, and the voxel size."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_MICRO = dict.fromkeys(("um", "µm", "μm", "\\u00b5m", "micron", "microns", "micrometer", "micrometre"), 1e-3)
_IN_MM = {"nm": 1e-6, "nanometer": 1e-6, **_MICRO, "mm": 1.0, "millimeter": 1.0, "millimetre": 1.0,
          "cm": 10.0, "centimeter": 10.0, "m": 1e3, "in": 25.4, "inch": 25.4, "inches": 25.4}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What the pages of a stack are."""

    depth: int
    groups: int = 1
    """Channels that are pages of their own; a colour page holds several more."""
    channel_first: bool = True
    """Whether the channels of a slice follow each other, or the slices of a channel."""
    affine: np.ndarray

    def page(self, group: int, z: int) -> int:
        """Index of a page."""
        return z * self.groups + group if self.channel_first else group * self.depth + z


def promised_pages(description: str) -> int:
    """The number of pages in a description, which may exceed those that the file lists; 1 if it has none."""
    if not description.startswith("ImageJ="):
        return 1
    return _count(_imagej_fields(description), "images")


def layout_of(description: str, num_pages: int, samples: int, resolution: tuple[float, float], path: Path) -> Layout:
    """The layout of a stack of `num_pages` pages of `samples` channels each; `path` is named in errors.

    `resolution` is pixels per unit along x and y, as in the TIFF tags, 0 if not there; it counts only if the
    description names the unit, as elsewhere it is that of a printer. Raises ValueError for a time series, and for
    pages that don't add up.
    """
    if description.startswith("ImageJ="):
        return _imagej(_imagej_fields(description), num_pages, resolution, path)
    if "<OME" in description[:2000]:
        return _ome(description, num_pages, samples, path)
    return Layout(depth=num_pages, affine=np.eye(4))


def _imagej(fields: Mapping[str, str], num_pages: int, resolution: tuple[float, float], path: Path) -> Layout:
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
    units = [_IN_MM.get(fields.get(name, shared).lower()) for name in ("unit", "yunit", "zunit")]
    return Layout(depth=slices, groups=channels, affine=_affine([x, y, z], units))


def _ome(description: str, num_pages: int, samples: int, path: Path) -> Layout:
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
    sizes = [_size(pixels.get(f"PhysicalSize{axis}", "")) for axis in "XYZ"]
    units = [_IN_MM.get(pixels.get(f"PhysicalSize{axis}Unit", "µm").lower()) for axis in "XYZ"]
    layout = Layout(
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


def _size(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0
