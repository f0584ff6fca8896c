"""Folders that hold images and label maps under the same names."""

from __future__ import annotations

import re
from pathlib import Path

from hasten.cases.formats import named_files
from hasten.cases.labels import parse_labels
from hasten.cases.layouts import PAIR_FOLDERS, refuse_layout
from hasten.cases.listing import Listing, load_json
from hasten.cases.types import Case
from hasten.config.patterns import first_few

_CHANNEL = re.compile(r"(.+)_\d{4}")


def read_pairs(folder: Path) -> Listing:
    """The cases of a folder with images/ and labels/ (or imagesTr/ and labelsTr/). Raises ValueError."""
    for images, labels in PAIR_FOLDERS:
        if (folder / images).is_dir() and (folder / labels).is_dir():
            cases = pair_files(folder / images, folder / labels)
            return Listing(name=folder.name, source=folder, cases=cases, labels=declared_labels(folder))
    refuse_layout(folder)


def pair_files(images: Path, labels: Path) -> tuple[Case, ...]:
    """Match images and label maps by name without ending; `NAME_0000`, `NAME_0001` are channels of `NAME`."""
    label_of = _by_stem(labels)
    images_of: dict[str, list[Path]] = {}
    without_label = []
    for name, path in _by_stem(images).items():
        channel = _CHANNEL.fullmatch(name)
        case_id = name if name in label_of or channel is None else channel[1]
        if case_id in label_of:
            images_of.setdefault(case_id, []).append(path)
        else:
            without_label.append(path.name)
    without_image = [path.name for name, path in label_of.items() if name not in images_of]
    if without_label:
        raise ValueError(
            f"{images}: {len(without_label)} images have no label map of the same name in {labels.name}/: "
            f"{first_few(without_label)}; add the label maps or move the images away."
        )
    if without_image:
        raise ValueError(
            f"{labels}: {len(without_image)} label maps have no image of the same name in {images.name}/: "
            f"{first_few(without_image)}; add the images or move the label maps away."
        )
    return tuple(Case(id=case_id, image=tuple(paths), label=label_of[case_id]) for case_id, paths in images_of.items())


def declared_labels(folder: Path) -> dict[int, str] | None:
    """The content of an optional labels.json next to the cases. Raises ValueError."""
    path = folder / "labels.json"
    return parse_labels(load_json(path), str(path)) if path.is_file() else None


def _by_stem(folder: Path) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for name, path in named_files(folder):
        if name in files:
            raise ValueError(f"{folder}: {files[name].name} and {path.name} share a name; keep one of them.")
        files[name] = path
    return files
