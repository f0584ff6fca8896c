"""Cleaning of predicted label maps, class by class: the largest component, a smallest size, holes filled."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import numpy as np
import yaml
from scipy import ndimage

from hasten.config.load import checked_as
from hasten.config.places import read_document
from hasten.files import replacing
from hasten.observe.folds import POSTPROCESSING_YAML

_HEADING = "# Chosen on the validation cases of all folds. SHA-256 of what follows, while nobody has edited it: "


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaning:
    """What is done to the voxels of one label value, in the order of the fields. What is removed becomes background."""

    name: str = ""
    """Of the class, for people."""
    min_volume_mm3: float = 0.0
    """Components that are smaller are removed; 0 removes none. Voxels that share a face, an edge or a corner belong to
    one component."""
    keep_largest: bool = False
    """Whether all components but the largest are removed."""
    fill_holes: bool = False
    """Whether background that the class encloses becomes the class."""


Cleanings = Mapping[int, Cleaning]
"""By label value."""


def postprocessed(label: np.ndarray, cleanings: Cleanings, spacing: tuple[float, float, float]) -> np.ndarray:
    """A label map (D, H, W) of label values, cleaned; the same array where there is nothing to do.

    spacing: (D, H, W) in mm. A map with D = 1 is cleaned in its plane.
    """
    out = label
    for value, cleaning in cleanings.items():
        mask = out == value
        if not mask.any():
            continue
        kept = _components(mask, cleaning, prod(spacing))
        out = np.where(mask & ~kept, 0, out).astype(label.dtype)
        if cleaning.fill_holes:
            filled = ndimage.binary_fill_holes(kept[0])[None] if len(kept) == 1 else ndimage.binary_fill_holes(kept)
            out[filled & (out == 0)] = value
    return out


def _components(mask: np.ndarray, cleaning: Cleaning, voxel_mm3: float) -> np.ndarray:
    """The voxels of `mask` that stay."""
    if not cleaning.keep_largest and not cleaning.min_volume_mm3:
        return mask
    components, count = ndimage.label(mask, np.ones((3, 3, 3)))
    sizes = np.bincount(components.ravel(), minlength=count + 1)
    sizes[0] = 0
    stays = sizes * voxel_mm3 >= cleaning.min_volume_mm3
    if cleaning.keep_largest:
        stays &= np.arange(count + 1) == sizes.argmax()
    stays[0] = False
    return stays[components]


def write_cleanings(folder: Path, cleanings: Cleanings) -> None:
    """Write postprocessing.yaml into the folder of a cross-validation, with a digest for `is_edited`."""
    tree = {value: asdict(cleaning) for value, cleaning in cleanings.items()}
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    target = folder / POSTPROCESSING_YAML
    with replacing(target, target.with_name(f".{target.name}.{os.getpid()}")) as file:
        file.write(f"{_HEADING}{_digest(text)}\n{text}".encode())


def is_edited(folder: Path) -> bool:
    """Whether somebody has changed the postprocessing.yaml of a folder since it was written."""
    try:
        first, _, rest = (folder / POSTPROCESSING_YAML).read_text().partition("\n")
    except FileNotFoundError:
        return False
    return first != f"{_HEADING}{_digest(rest)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_cleanings(run: str | Path | Sequence[str | Path], labels: Mapping[str, str]) -> dict[int, Cleaning]:
    """What the postprocessing.yaml of a cross-validation says; nothing for anything else, or without one.

    labels: label value to name, of the networks. Raises ValueError for a file of another form.
    """
    if not isinstance(run, (str, Path)) or not (path := Path(run) / POSTPROCESSING_YAML).is_file():
        return {}
    found, wrong = {}, []
    for value, tree in read_document(path).tree.items():
        if str(value) not in labels or not isinstance(tree, dict):
            wrong.append(
                f"{value}: {'the networks have no such label value' if isinstance(tree, dict) else 'no mapping'}"
            )
            continue
        found[int(value)], mistakes = checked_as(Cleaning, tree, (value,))
        wrong += [f"{'.'.join(map(str, at))}: {message}" for at, message in mistakes]
    if wrong:
        raise ValueError(
            f"{path}: {'; '.join(wrong)}; correct it, write it anew with `hasten report`, or add --no-postprocessing"
        )
    return found
