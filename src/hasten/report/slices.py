"""Example slices as PNG data URIs: the image once, and transparent overlays to lay over it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable

import numpy as np
from PIL import Image

from hasten.report import words
from hasten.report.model import Key, Slice
from hasten.report.read import Example

COLORS = ("#f0a62b", "#56b4e9", "#2bc796", "#f0e442", "#dd8fbb", "#ff7f50", "#a99cff", "#c9a27a")
"""One per class, in the order of the page's --c1 to --c8 and of their hues, bright enough to stand on a dark image."""

MISSED, EXTRA, CONFUSED = "#ff4d6d", "#b6ff3b", "#d08bff"
"""Labelled but not predicted; predicted but not labelled; both, with another class."""

DIFFERENCE_KEYS = (
    Key("missed (labelled, not predicted)", MISSED),
    Key("extra (predicted, not labelled)", EXTRA),
    Key("wrong class", CONFUSED),
)

LONG_SIDE = 320
"""Pixels of an overlay's longer side, nearly; a larger slice is reduced to it."""

_FILL_ALPHA = 80


def slice_of(example: Example, values: list[int]) -> Slice:
    """The pictures of a slice. values: what its label map may hold besides 0, in the order of their colours."""
    return Slice(
        name=example.name,
        dice=words.score(example.dice),
        width=example.image.shape[1],
        height=example.image.shape[0],
        image=image_uri(example.image),
        label=label_uri(example.label, values),
        prediction=label_uri(example.prediction, values),
        difference=difference_uri(example.label, example.prediction),
    )


def class_keys(names: Iterable[str]) -> tuple[Key, ...]:
    """The legend of the classes on slices."""
    return tuple(Key(name, COLORS[index % len(COLORS)]) for index, name in enumerate(names))


def image_uri(image: np.ndarray) -> str:
    """A slice (H, W) in 0..1 as an 8-bit greyscale PNG data URI, reduced to `LONG_SIDE` if it is larger."""
    grey = Image.fromarray((np.nan_to_num(image).clip(0, 1) * 255).round().astype(np.uint8))
    if max(grey.size) > LONG_SIDE:
        grey.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.LANCZOS)
    return png_uri(grey)


def label_uri(label: np.ndarray, values: list[int]) -> str:
    """Classes of `label` (H, W) as tinted areas with an outline; `values[i]` gets `COLORS[i]`."""
    colors = [COLORS[index % len(COLORS)] for index in range(len(values))]
    return _overlay([label == value for value in values], colors, outline=True)


def difference_uri(label: np.ndarray, prediction: np.ndarray) -> str:
    """Voxels where `label` and `prediction` (H, W) disagree, by the kind of error."""
    masks = [
        (label > 0) & (prediction == 0),
        (label == 0) & (prediction > 0),
        (label > 0) & (prediction > 0) & (label != prediction),
    ]
    return _overlay(masks, [MISSED, EXTRA, CONFUSED], outline=False)


def _overlay(masks: list[np.ndarray], colors: list[str], *, outline: bool) -> str:
    """A palette PNG: 0 is clear, then a tint and a full colour per mask."""
    shape = masks[0].shape if masks else (1, 1)
    classes = np.zeros(shape, np.uint8)
    for index, mask in enumerate(masks[:120]):
        classes[mask] = index + 1
    classes = _resize(classes)
    full = _outline(classes, width=max(1, max(classes.shape) // 130)) if outline else classes > 0
    indices = np.where(full, 2 * classes, np.where(classes > 0, 2 * classes - 1, 0)).astype(np.uint8)
    picture = Image.fromarray(indices)
    palette, alpha = [0, 0, 0], [0]
    for color in colors[:120]:
        palette += [int(color[start : start + 2], 16) for start in (1, 3, 5)] * 2
        alpha += [_FILL_ALPHA, 255]
    picture.putpalette(palette)
    return png_uri(picture, transparency=bytes(alpha))


def _resize(classes: np.ndarray) -> np.ndarray:
    """Nearest neighbour by a whole factor, so that every voxel keeps the same size."""
    long_side = max(classes.shape)
    if long_side > LONG_SIDE:
        rows, columns = (max(1, round(size * LONG_SIDE / long_side)) for size in classes.shape)
        picture = Image.fromarray(classes).resize((columns, rows), Image.Resampling.NEAREST)
        return np.asarray(picture)
    factor = LONG_SIDE // long_side
    return classes.repeat(factor, axis=0).repeat(factor, axis=1)


def _outline(classes: np.ndarray, *, width: int) -> np.ndarray:
    """Pixels of a class that lie within `width` of another class or the background."""
    rows, columns = classes.shape
    padded = np.pad(classes, width, mode="edge")
    edge = np.zeros(classes.shape, bool)
    for row, column in ((0, width), (2 * width, width), (width, 0), (width, 2 * width)):
        edge |= padded[row : row + rows, column : column + columns] != classes
    return edge & (classes > 0)


def png_uri(picture: Image.Image, *, transparency: bytes | None = None) -> str:
    """A picture as a PNG data URI; transparency: alpha of each entry of its palette."""
    stream = io.BytesIO()
    extra = {} if transparency is None else {"transparency": transparency}
    picture.save(stream, format="PNG", optimize=True, **extra)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
