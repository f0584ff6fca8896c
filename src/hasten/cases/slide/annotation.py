"""Lesions of a slide: from a mask next to it, or from the polygons that ASAP writes (Camelyon's XML)."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from hasten.cases.slide.open import MASK_BACKENDS, Slide, open_slide

_EXCLUDED = ("_2", "exclusion")
"""Camelyon's groups of what is cut out of the lesions (holes of normal tissue)."""
_SIDES_APART = 1.02


def read_lesions(path: str | Path, slide: Slide, level: int) -> np.ndarray:
    """(H, W) bool, the lesions on a level of the slide. path: a mask of the slide's size (TIFF), or ASAP's XML.

    A mask with fewer levels is read at its nearest finer one and thinned. Raises ValueError for a file that is not
    there, a mask of another size, and XML that is not ASAP's.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"{path}: no such mask of {slide.path}; leave the mask empty in the list if the slide has no lesion"
        )
    target = slide.levels[slide.level(level)]
    if path.suffix.lower() == ".xml":
        return draw_polygons(path, (target.height, target.width), target.downsample)
    with open_slide(path, order=MASK_BACKENDS) as mask:
        ours, theirs = slide.levels[0], mask.levels[0]
        if (ours.height, ours.width) != (theirs.height, theirs.width):
            raise ValueError(
                f"{path}: is {theirs.height} x {theirs.width} pixels, and {slide.path} is {ours.height} x "
                f"{ours.width}; a mask must be as large as its slide"
            )
        lesions = mask.read_level(mask.level_near(target.downsample / _SIDES_APART))[..., 0] > 0
    rows, columns = (
        np.minimum((np.arange(count) * length) // count, length - 1)
        for count, length in zip((target.height, target.width), lesions.shape, strict=True)
    )
    return lesions if lesions.shape == (target.height, target.width) else lesions[np.ix_(rows, columns)]


def draw_polygons(path: Path, shape: tuple[int, int], downsample: float) -> np.ndarray:
    """(H, W) bool: polygons of ASAP's XML, in pixels of level 0, on a level. Where polygons overlap, even-odd.

    Raises ValueError for what is no such file.
    """
    canvas = np.zeros(shape, bool)
    for polygon, excluded in read_polygons(path):
        image = Image.new("1", shape[::-1])
        # A pixel's own middle is half a pixel from its corner, in either level.
        points = [(x / downsample - 0.5, y / downsample - 0.5) for x, y in polygon.tolist()]
        ImageDraw.Draw(image).polygon(points, fill=1, outline=1)
        drawn = np.asarray(image)
        canvas = canvas & ~drawn if excluded else canvas ^ drawn
    return canvas


def read_polygons(path: Path) -> list[tuple[np.ndarray, bool]]:
    """Each polygon as (N, 2) x, y in pixels of level 0, and whether it is cut out; those that are come last.

    Raises ValueError for a file that is no ASAP XML.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise ValueError(f"{path}: can't be read as XML ({error}); export the annotations again from ASAP") from error
    if root.tag != "ASAP_Annotations":
        raise ValueError(f"{path}: begins with <{root.tag}>, not <ASAP_Annotations>; export the annotations from ASAP")
    polygons: list[tuple[np.ndarray, bool]] = []
    for annotation in root.iter("Annotation"):
        try:
            corners = [
                (int(float(each.get("Order", number))), float(each.attrib["X"]), float(each.attrib["Y"]))
                for number, each in enumerate(annotation.iter("Coordinate"))
            ]
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path}: annotation {annotation.get('Name')!r} has a corner without X, Y") from error
        if len(corners) >= 3:
            group = annotation.get("PartOfGroup", "").lower()
            polygons.append((np.array([corner[1:] for corner in sorted(corners)]), group in _EXCLUDED))
    return sorted(polygons, key=lambda each: each[1])
