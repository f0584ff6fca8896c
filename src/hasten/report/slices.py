"""Example slices as PNG data URIs: the image once, and transparent overlays to lay over it."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence

import numpy as np
from PIL import Image

from hasten.evaluation.examples import Example
from hasten.report.model import Key, Section

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


def slices_section(title: str, examples: Sequence[Example], classes: Iterable[str], *, none: str) -> Section:
    """Slices of chosen cases. none: what is said where there are none."""
    note = "" if examples else none
    if any(example.where for example in examples):  # volumes
        note = (
            "Each is the slice on which label map and prediction differ most, or where they agree the one with the "
            "most foreground; Dice is that of the whole case."
        )
    keys = (*class_keys(classes), *DIFFERENCE_KEYS)
    return Section(title, slices=tuple(examples), keys=keys, note=note)


def class_keys(names: Iterable[str]) -> tuple[Key, ...]:
    """The legend of the classes on slices."""
    return tuple(Key(name, COLORS[index % len(COLORS)]) for index, name in enumerate(names))


def image_uri(image: np.ndarray) -> str:
    """A slice (H, W) or (H, W, 3) in 0..1 as an 8-bit PNG data URI, reduced to `LONG_SIDE` if it is larger."""
    picture = Image.fromarray((np.nan_to_num(image).clip(0, 1) * 255).round().astype(np.uint8))
    if max(picture.size) > LONG_SIDE:
        picture.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.LANCZOS)
    return png_uri(picture)


def label_uri(label: np.ndarray) -> str:
    """Class indices (H, W) as tinted areas with an outline; class k has `COLORS[k - 1]`, and 0 is clear."""
    return _overlay(label, COLORS, outline=True)


def difference_uri(label: np.ndarray, prediction: np.ndarray) -> str:
    """Voxels where `label` and `prediction` (H, W) disagree, by the kind of error."""
    errors = np.select([label == prediction, prediction == 0, label == 0], [0, 1, 2], 3)
    return _overlay(errors.astype(np.uint8), (MISSED, EXTRA, CONFUSED), outline=False)


def _overlay(classes: np.ndarray, colors: Sequence[str], *, outline: bool) -> str:
    """A palette PNG of (H, W) uint8: 0 is clear, then a tint and a full colour for each of `colors`, which repeat."""
    classes = _resize(classes)
    full = classes > 0
    if outline:  # what lies near another class or the background
        from scipy.ndimage import maximum_filter, minimum_filter

        box = 2 * max(1, max(classes.shape) // 130) + 1
        full &= maximum_filter(classes, box) != minimum_filter(classes, box)
    place = (classes - 1) % len(colors)
    indices = np.where(classes == 0, 0, 2 * place + np.where(full, 2, 1)).astype(np.uint8)
    picture = Image.fromarray(indices)
    palette, alpha = [0, 0, 0], [0]
    for color in colors:
        palette += [int(color[start : start + 2], 16) for start in (1, 3, 5)] * 2
        alpha += [_FILL_ALPHA, 255]
    picture.putpalette(palette)
    return png_uri(picture, transparency=bytes(alpha))


def _resize(classes: np.ndarray) -> np.ndarray:
    """Nearest neighbour by a whole factor, so that every voxel keeps the same size."""
    long_side = max(classes.shape)
    if long_side > LONG_SIDE:
        rows, columns = (max(1, round(size * LONG_SIDE / long_side)) for size in classes.shape)
        return np.asarray(Image.fromarray(classes).resize((columns, rows), Image.Resampling.NEAREST))
    factor = LONG_SIDE // long_side
    return classes.repeat(factor, axis=0).repeat(factor, axis=1)


def png_uri(picture: Image.Image, *, transparency: bytes | None = None) -> str:
    """A picture as a PNG data URI; transparency: alpha of each entry of its palette."""
    stream = io.BytesIO()
    extra = {} if transparency is None else {"transparency": transparency}
    picture.save(stream, format="PNG", optimize=True, **extra)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
