"""Folders with images and label maps under the same names; for other folders, errors that name the nearest layout."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from hasten.cases.dicom import check_is_image
from hasten.cases.entries import Listing, load_json
from hasten.cases.formats import ENDINGS, ending, named_files
from hasten.cases.labels import parse_labels
from hasten.cases.types import Case
from hasten.config.patterns import first_few

log = logging.getLogger(__name__)

_CHANNEL = re.compile(r"(.+)_\d{4}")
_LABEL_MARKS = (
    r"cp[-_]?masks?|masks?|seg(?:mentation)?s?|labels?|label[-_]?maps?|annotations?|annot|gt|ground[-_]?truth|manual|"
    r"rois?|targets?"
)
_MARKS = rf"images?|imgs?|raw|{_LABEL_MARKS}"
_MARK = re.compile(rf"^(?:{_MARKS})(?=[\W_\d])[\W_]*|(?:[\W_]+|(?<=\d))(?:{_MARKS})$")
"""A word that says what a file is, at either end of its name."""
_LABEL_MARK = re.compile(rf"^(?:{_LABEL_MARKS})(?=[\W_\d])|(?:[\W_]+|(?<=\d))(?:{_LABEL_MARKS})$")
"""One that says that it is a label map."""


def read_pairs(folder: Path) -> Listing:
    """The cases of a folder with images/ and labels/ (or imagesTr/ and labelsTr/). Raises ValueError."""
    pair = _pair_folders(folder)
    cases = pair_files(*pair) if pair else side_by_side(folder)
    if not pair and not cases:
        refuse_layout(folder)
    return Listing(name=folder.name, source=folder, cases=cases, labels=declared_labels(folder))


def pair_files(images: Path, labels: Path) -> tuple[Case, ...]:
    """Match images and label maps by name without ending; `NAME_0000`, `NAME_0001` are channels of `NAME`.

    What is left is matched by `similar_names`. A case is called as its image.
    """
    label_of, image_of = _by_stem(labels), _by_stem(images)
    base_of = {name: match[1] for name in image_of if (match := _CHANNEL.fullmatch(name))}
    case_of = {name: name if name in label_of else base_of.get(name, name) for name in image_of}
    rest = [name for name, case_id in case_of.items() if case_id not in label_of]
    free = label_of.keys() - set(case_of.values())
    alike = similar_names(rest, free, str(labels))
    alike |= similar_names(
        {base_of[name] for name in rest if name in base_of and name not in alike},
        free - set(alike.values()),
        str(labels),
    )
    case_of |= {name: name if name in alike else base_of.get(name, name) for name in rest}
    if alike:
        log.info(
            "%s: %d cases are paired by similar names: %s",
            images,
            len(alike),
            first_few(f"{name} with {label_of[label].name}" for name, label in alike.items()),
        )
    label_of |= {name: label_of.pop(label) for name, label in alike.items()}
    images_of: dict[str, list[Path]] = {}
    without_label = []
    for name, path in image_of.items():
        if case_of[name] in label_of:
            images_of.setdefault(case_of[name], []).append(path)
        else:
            without_label.append(name)
    without_image = [name for name in label_of if name not in images_of]
    if without_image or not (label_of or without_label):
        refuse_unread(images, [label_of[name].name for name in without_image])
    if without_label:
        refuse_unread(labels, [image_of[name].name for name in without_label])
        shown = first_few(f"{image_of[name].name}{nearest(name, without_image)}" for name in without_label)
        left = first_few(label_of[name].name for name in without_image)
        raise ValueError(
            f"{images}: {len(without_label)} images have no label map of the same name in {labels.name}/: "
            f"{shown}{f', and {labels.name}/ has {left} without an image' if left else ''}; give both the same names, "
            "add the label maps or move the images away."
        )
    if without_image:
        raise ValueError(
            f"{labels}: {len(without_image)} label maps have no image of the same name in {images.name}/: "
            f"{first_few(label_of[name].name for name in without_image)}; add the images or move the label maps away."
        )
    return tuple(Case(id=case_id, image=tuple(paths), label=label_of[case_id]) for case_id, paths in images_of.items())


def side_by_side(folder: Path) -> tuple[Case, ...]:
    """The cases of a folder that holds each image with its label map, NAME_masks or NAME_seg beside NAME or NAME_img,
    as cellpose does; none where a file is left over, or there are folders. Raises ValueError for names like several.
    """
    if _folders(folder):
        return ()
    files = _by_stem(folder)
    labels = [name for name in files if _LABEL_MARK.search(name.casefold())]
    alike = similar_names(files.keys() - set(labels), labels, str(folder))
    if 2 * len(alike) != len(files):
        return ()
    return tuple(Case(id=name, image=(files[name],), label=files[alike[name]]) for name in sorted(alike))


def similar_names(images: Iterable[str], labels: Iterable[str], where: str) -> dict[str, str]:
    """Images, each with the label map whose name differs only in case, or in words such as `_mask`, `label`, `img`.

    Raises ValueError, beginning with `where`, if a name fits several.
    """
    by_key: dict[str, tuple[list[str], list[str]]] = {}
    for side, names in enumerate((images, labels)):
        for name in sorted(names):
            by_key.setdefault(_bare(name), ([], []))[side].append(name)
    pairs = [pair for pair in by_key.values() if all(pair)]
    for some_images, some_labels in pairs:
        if len(some_images) > 1 or len(some_labels) > 1:
            raise ValueError(
                f"{where}: several names are alike, {', '.join(some_images)} and {', '.join(some_labels)}; give every "
                "image and its label map the same name."
            )
    return {image: label for ((image,), (label,)) in pairs}


def _bare(name: str) -> str:
    """A name in lower case without words that say that it is an image or a label map."""
    name, before = name.casefold(), ""
    while name != before:
        before, name = name, _MARK.sub("", name) or name
    return name


def nearest(name: str, others: Iterable[str]) -> str:
    """A hint to the most similar of other names; empty if none is."""
    by_bare = {_bare(other): other for other in others}
    close = difflib.get_close_matches(_bare(name), by_bare, 1)
    return f" (nearest is {by_bare[close[0]]})" if close else ""


def refuse_unread(folder: Path, names: Sequence[str]) -> None:
    """Raise ValueError for files that are of a kind that is not read, of these names, or of any if there are none."""
    stems = {_CHANNEL.sub(r"\1", name.removesuffix(ending(name))) for name in names}
    unread = sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix
        and not ending(path)
        and not path.name.startswith(".")
        and path.is_file()
        and (not stems or _CHANNEL.sub(r"\1", path.stem) in stems)
    )
    if unread:
        check_is_image(folder / unread[0])
        raise ValueError(
            f"{folder}: {len(unread)} files are of no known kind ({', '.join(ENDINGS)}): {first_few(unread)}; convert "
            "them to .png or .nii.gz."
        )


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


def refuse_layout(folder: Path) -> NoReturn:
    """Raise the ValueError for a folder of unknown layout, naming those one folder deeper."""
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in folder.iterdir() if not p.name.startswith("."))
    deeper = [str(folder / name) for name in _folders(folder) if has_layout(folder / name)]
    raise ValueError(
        f"{folder}: has no known layout: a dataset.json, images/ with labels/, imagesTr/ with labelsTr/, or each image "
        f"NAME with its label map NAME_mask; found {first_few(names, 8) or 'nothing'}. "
        + (f"Name {' or '.join(deeper)}." if deeper else "Rename the folders, or pass a JSON or CSV list of the files.")
    )


def has_layout(folder: Path) -> bool:
    """Whether a folder looks like one of the layouts; no file is opened."""
    return _pair_folders(folder) is not None or (folder / "dataset.json").is_file()


def _pair_folders(folder: Path) -> tuple[Path, Path] | None:
    """The folders of the images and of the label maps, if there are both."""
    pairs = [(folder / f"images{part}", folder / f"labels{part}") for part in ("", "Tr")]
    return next((pair for pair in pairs if all(each.is_dir() for each in pair)), None)


def _folders(folder: Path) -> list[str]:
    return [path.name for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
