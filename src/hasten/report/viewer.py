"""`write_viewer`: volumes with their label maps as one HTML page, whose slices can be paged through in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hasten.config.patterns import first_few
from hasten.prepare.orient import Flip, Permute, orient
from hasten.report.html import write_template
from hasten.report.model import Key
from hasten.report.slices import DIFFERENCE_KEYS, png_uri

MOST_BYTES = 20_000_000
"""Size of a page at most."""
_REDUCTIONS = (
    *((1, 1, 256), (1, 1, 64), (2, 1, 64), (2, 2, 64), (4, 2, 64), (4, 4, 32)),
    *((8, 4, 32), (8, 8, 32), (16, 16, 32), (32, 32, 16)),
)
"""What is embedded: every nth slice, every nth row and column, grey values; the first that fits into a page."""
_SAMPLED = 8
"""Slices that are packed to estimate the size of all."""
_PERCENTILES = (0.5, 99.5)
"""Percentiles of an image that are shown black and white."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis of a shown volume: x, y or z of the file, and the file's index of its first slice."""

    name: str
    first: int
    step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Pictured:
    """A volume as it is shown: axes from inferior to superior, from anterior to posterior, from right to left."""

    name: str
    image: np.ndarray
    """(C, D, H, W)."""
    spacing: tuple[float, float, float]
    axes: tuple[Axis, Axis, Axis]
    maps: Mapping[str, np.ndarray]
    """Class indices (D, H, W) uint8 by what they are: label, prediction."""
    ranges: tuple[tuple[float, float], ...]
    """Values of each channel that are shown black and white."""
    anatomical: bool = True
    """Whether its sides are named: not where the file says nothing of them."""
    planes: tuple[str, ...] = ("axial", "coronal", "sagittal")
    caption: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """A page. Volumes that are linked show the same slice."""

    title: str
    verdict: str
    volumes: Sequence[Pictured]
    channels: Sequence[str]
    classes: Sequence[Key]
    """Names and colours by class index; the background first."""
    colour: bool = False
    """Whether the three channels are red, green and blue."""
    ignored: bool = False
    """Whether label maps have voxels that are not annotated."""
    linked: bool = False
    notes: tuple[str, ...] = ()
    links: Sequence[tuple[str, str]] = ()
    """Names of other pages and their files; of this page none."""


def turned(
    name: str,
    image: np.ndarray,
    maps: Mapping[str, np.ndarray],
    permute: Permute,
    flip: Flip,
    *,
    spacing: tuple[float, float, float],
    ranges: Sequence[tuple[float, float]],
    caption: str = "",
) -> Pictured:
    """A volume (C, D, H, W) and its maps (D, H, W) in the file's order, turned; a single slice stays as it is.

    permute, flip: as `orientation_of` gives them for RAS. spacing: (D, H, W) of the file in mm.
    """
    flat = image.shape[1] == 1
    if flat:
        permute, flip = (0, 1, 2), (False, False, False)
    else:  # from RAS, whose rows run to anterior and whose columns run to the right
        flip = (flip[0], not flip[1], not flip[2])
    axes = [
        Axis(name="zyx"[source], first=image.shape[1 + source] - 1 if backwards else 0, step=-1 if backwards else 1)
        for source, backwards in zip(permute, flip, strict=True)
    ]
    return Pictured(
        name=name,
        image=orient(image, permute, flip),
        maps={layer: orient(each, permute, flip) for layer, each in maps.items()},
        spacing=(spacing[permute[0]], spacing[permute[1]], spacing[permute[2]]),
        axes=(axes[0], axes[1], axes[2]),
        ranges=tuple(ranges),
        anatomical=not flat,
        planes=("axial",) if flat else ("axial", "coronal", "sagittal"),
        caption=caption,
    )


def range_of(channel: np.ndarray) -> tuple[float, float]:
    """The values of a channel that are shown black and white: all of 8-bit ones, else its percentiles."""
    if channel.dtype == np.uint8:
        return 0.0, 255.0
    step = max(1, round((channel.size / 2e6) ** (1 / 3)))
    low, high = np.percentile(channel[tuple(slice(None, None, step) for _ in channel.shape)], _PERCENTILES).tolist()
    return low, high if high > low else low + 1


def write_viewer(page: Viewer, out: Path) -> Path:
    """Write the page to the file `out`, reduced until it has at most `MOST_BYTES`, and return it. Raises ValueError."""
    budget = MOST_BYTES * 0.98 - 60_000
    for slices, sides, levels in _REDUCTIONS:
        if sum(_estimated(volume, slices, sides, levels) for volume in page.volumes) > 1.1 * budget:
            continue
        volumes = [_packed(volume, slices, sides, levels) for volume in page.volumes]
        if len(json.dumps(volumes)) <= budget:
            break
    else:
        raise ValueError(f"{out}: {first_few([each.name for each in page.volumes])} are too large for a page")
    data = {
        "volumes": volumes,
        "channels": list(page.channels),
        "colour": page.colour,
        "classes": [asdict(key) for key in page.classes],
        "errors": [asdict(key) for key in DIFFERENCE_KEYS],
        "ignored": page.ignored,
        "linked": page.linked,
        "crosshair": not page.linked and page.volumes[0].anatomical,
    }
    parts = [f"one of {slices} slices"] * (slices > 1) + [f"one of {sides} rows and columns"] * (sides > 1)
    left_out = ", ".join(parts + [f"{levels} grey values"] * (levels < 256))
    notes = (*page.notes, *([f"To keep the page below 20 MB it has {left_out}."] if left_out else []))
    return write_template(
        "viewer.html.j2",
        out,
        title=page.title,
        verdict=page.verdict,
        notes=notes,
        links=page.links,
        data=data,
    )


def _packed(volume: Pictured, slices: int, sides: int, levels: int) -> dict[str, Any]:
    steps = (slices if volume.image.shape[1] > 1 else 1, sides, sides)
    thinned = tuple(slice(None, None, step) for step in steps)
    shape = [len(range(0, size, step)) for size, step in zip(volume.image.shape[1:], steps, strict=True)]
    maps = {layer: _pngs(array[thinned]) for layer, array in volume.maps.items()}
    interesting = next((array[thinned] for array in volume.maps.values() if array.any()), None)
    return {
        "name": volume.name,
        "caption": volume.caption,
        "shape": shape,
        "mm": [size * each for size, each in zip(volume.image.shape[1:], volume.spacing, strict=True)],
        "axes": [
            {"name": axis.name, "first": axis.first, "step": axis.step * step}
            for axis, step in zip(volume.axes, steps, strict=True)
        ],
        "at": _fullest(interesting) if interesting is not None else [size // 2 for size in shape],
        "anatomical": volume.anatomical,
        "planes": list(volume.planes),
        "values": [list(each) for each in volume.ranges],
        "channels": [
            _pngs(_greys(channel[thinned], limits, levels))
            for channel, limits in zip(volume.image, volume.ranges, strict=True)
        ],
        **maps,
    }


def _fullest(classes: np.ndarray) -> list[int]:
    """Along each axis the slice that holds most of a label map (D, H, W)."""
    return [int((classes > 0).sum(tuple({0, 1, 2} - {axis})).argmax()) for axis in range(3)]


def _greys(channel: np.ndarray, limits: tuple[float, float], levels: int) -> Iterator[np.ndarray]:
    """The slices of a channel (D, H, W) in so many values from 0 to 255."""
    low, high = limits
    for plane in channel:
        share = ((plane.astype(np.float32) - low) / (high - low)).clip(0, 1)
        yield np.rint(np.rint(share * (levels - 1)) * (255 / (levels - 1))).astype(np.uint8)


def _pngs(planes: Iterable[np.ndarray]) -> list[str]:
    return [png_uri(Image.fromarray(np.ascontiguousarray(plane))) for plane in planes]


def _estimated(volume: Pictured, slices: int, sides: int, levels: int) -> float:
    """Bytes that it takes on the page, from a few of its slices."""
    depth = volume.image.shape[1]
    every = max(1, depth // (slices * _SAMPLED)) * slices
    sampled = _packed(volume, every, sides, levels)
    return len(json.dumps(sampled)) * len(range(0, depth, slices)) / len(range(0, depth, every))
