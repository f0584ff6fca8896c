"""Cleaning of predicted label maps, class by class: the largest component, a smallest size, holes filled."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import numpy as np
import yaml

from hasten.checkpoint.shared import run_paths
from hasten.config.validate import checked_as
from hasten.config.yaml_file import read_document
from hasten.files import replacing
from hasten.observe.folds import POSTPROCESSING_YAML, is_cross_validation
from hasten.observe.rundir import CHECKPOINTS

log = logging.getLogger(__name__)

_HEADING = "# Chosen on validation cases. SHA-256 of what follows, while nobody has edited it: "


@dataclass(frozen=True, kw_only=True, slots=True)
class Cleaning:
    """What is done to the voxels of one label value, in the order of the fields. What is removed becomes background."""

    name: str = ""
    """Name of the class, for readers of the file."""
    min_volume_mm3: float = 0.0
    """Components that are smaller are removed; 0 removes none. In px of images without a spacing. Voxels that share a
    face, an edge or a corner belong to one component."""
    keep_largest: bool = False
    """Whether all components but the largest are removed."""
    fill_holes: bool = False
    """Whether background that the class encloses becomes the class."""

    def text(self, unit: str) -> str:
        """What is done, for readers. unit: of lengths in these images, mm or px."""
        volume = {"mm": "mm³"}.get(unit, unit)
        steps = {
            f"components below {self.min_volume_mm3:g} {volume} removed": self.min_volume_mm3 > 0,
            "largest component only": self.keep_largest,
            "holes filled": self.fill_holes,
        }
        return ", ".join(text for text, is_set in steps.items() if is_set) or "none"


Cleanings = Mapping[int, Cleaning]
"""Cleanings by label value."""


def postprocessed(label: np.ndarray, cleanings: Cleanings, spacing: tuple[float, float, float]) -> np.ndarray:
    """A label map (D, H, W) of label values, cleaned; the same array where there is nothing to do.

    spacing: (D, H, W) in mm. A map with D = 1 is cleaned in its plane.
    """
    out = label
    from scipy import ndimage  # a third of a second, which the start of a run need not pay

    for value, cleaning in cleanings.items():
        mask = out == value
        if not mask.any():
            continue
        components = _components(mask, cleaning, prod(spacing))
        out = np.where(mask & ~components, 0, out).astype(label.dtype)
        if cleaning.fill_holes:
            inner = components[0] if len(components) == 1 else components
            filled = ndimage.binary_fill_holes(inner).reshape(components.shape)
            out[filled & (out == 0)] = value
    return out


def _components(mask: np.ndarray, cleaning: Cleaning, voxel_mm3: float) -> np.ndarray:
    """The voxels of `mask` that are kept."""
    if not cleaning.keep_largest and not cleaning.min_volume_mm3:
        return mask
    from scipy import ndimage

    components, count = ndimage.label(mask, np.ones((3, 3, 3)))
    sizes = np.bincount(components.ravel(), minlength=count + 1)
    sizes[0] = 0
    stays = sizes * voxel_mm3 >= cleaning.min_volume_mm3
    if cleaning.keep_largest:
        stays &= np.arange(count + 1) == np.argmax(sizes)
    stays[0] = False
    return stays[components]


def write_cleanings(folder: Path, cleanings: Cleanings) -> None:
    """Write postprocessing.yaml into the folder of a run or cross-validation, with a digest for `is_edited`.

    A file that somebody has edited is kept, with a warning.
    """
    if is_edited(folder):
        log.warning("%s: was edited, and is kept; remove it to have it written anew", folder / POSTPROCESSING_YAML)
        return
    target = folder / POSTPROCESSING_YAML
    with replacing(target) as file:
        file.write(cleanings_bytes(cleanings))


def cleanings_bytes(cleanings: Cleanings) -> bytes:
    """The content of postprocessing.yaml."""
    tree = {value: asdict(cleaning) for value, cleaning in cleanings.items()}
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    return f"{_HEADING}{_digest(text)}\n{text}".encode()


def is_edited(folder: Path) -> bool:
    """Whether somebody has changed the postprocessing.yaml of a folder since it was written."""
    try:
        first, _, rest = (folder / POSTPROCESSING_YAML).read_text(encoding="utf-8").partition("\n")
    except FileNotFoundError:
        return False
    return not first.endswith(_digest(rest))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_cleanings(run: str | Path | Sequence[str | Path], labels: Mapping[str, str]) -> dict[int, Cleaning]:
    """What the postprocessing.yaml of a run or a cross-validation says; nothing without one.

    A fold without its own file has that of its cross-validation. Several runs: what they agree on; where they
    differ nothing is done, with a warning. run: as `read_members` takes it. labels: label value to name, of the
    networks. Raises ValueError for a file of another form.
    """
    paths = run_paths(run)
    cleanings = [_read(file, labels) if (file := _file_of(path)) else {} for path in paths]
    if any(each != cleanings[0] for each in cleanings[1:]):
        log.warning(
            "%s: differ in their post-processing, so none is done; give each the same %s",
            " and ".join(map(str, paths)),
            POSTPROCESSING_YAML,
        )
        return {}
    return cleanings[0]


def _file_of(run: Path) -> Path | None:
    if run.name == "best.pt" and run.parent.name == CHECKPOINTS:
        run = run.parent.parent
    folders = [run, run.absolute().parent] if is_cross_validation(run.absolute().parent) else [run]
    return next((file for folder in folders if (file := folder / POSTPROCESSING_YAML).is_file()), None)


def _read(path: Path, labels: Mapping[str, str]) -> dict[int, Cleaning]:
    cleanings, problems = {}, []
    for value, tree in read_document(path).tree.items():
        if str(value) not in labels or not isinstance(tree, dict):
            problems.append(
                f"{value}: {'the networks have no such label value' if isinstance(tree, dict) else 'no mapping'}"
            )
            continue
        cleanings[int(value)], mistakes = checked_as(Cleaning, tree, (value,))
        problems += [f"{'.'.join(map(str, at))}: {message}" for at, message in mistakes]
    if problems:
        raise ValueError(f"{path}: {'; '.join(problems)}; correct it, remove it, or add --no-postprocessing")
    return cleanings
