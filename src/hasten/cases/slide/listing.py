"""Lists slides with their masks: from a CSV or JSON list, or a folder with slides/ and masks/."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

_LISTS = ("slides.csv", "slides.json")
_SLIDES = (".tif", ".tiff", ".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".bif", ".svslide")
_MASKS = (".tif", ".tiff", ".xml")
_NORMAL = "normal"
"""A slide whose name begins so has no lesions, as Camelyon's."""
_SPLITS = ("", "train", "validation")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideCase:
    """A slide and what is known of it."""

    id: str
    slide: Path
    mask: Path | None
    """None if it has no lesion."""
    split: Literal["", "train", "validation"] = ""
    """Part that the list assigns the slide to; empty if the list has no split."""


def find_slides(source: str | Path) -> tuple[SlideCase, ...]:
    """The slides of a list, or of a folder that holds one or has slides/ and masks/. Their files are not opened.

    A list has the columns (keys) slide, mask and split; paths are relative to it; an empty mask means no lesion. In a
    folder, a slide's mask has its name, with or without _mask behind it; slides called normal... need none.
    Raises ValueError for any other source, a missing slide or mask, and two slides of one name.
    """
    source = Path(source)
    if source.is_dir():
        listed = next((source / name for name in _LISTS if (source / name).is_file()), None)
        cases = _of_list(listed) if listed is not None else _of_folder(source)
    elif source.is_file() and source.suffix.lower() in (".csv", ".json"):
        cases = _of_list(source)
    else:
        raise ValueError(
            f"{source}: give a folder with slides/ and masks/, or a CSV or JSON list of slide, mask and split"
        )
    ids = [case.id for case in cases]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise ValueError(f"{source}: several slides are called {twice[0]}; give each a name of its own")
    return cases


def split_slides(cases: tuple[SlideCase, ...], fraction: float) -> tuple[tuple[SlideCase, ...], tuple[SlideCase, ...]]:
    """The slides to train and to validate on. Without a split in the list, every n-th slide is for validation.

    Slides with and without lesions are split separately, so that both parts have some of each if possible.
    Raises ValueError where one of them would be empty, or the list splits only some.
    """
    assigned = [case for case in cases if case.split]
    if assigned and len(assigned) < len(cases):
        unsplit = next(case.id for case in cases if not case.split)
        raise ValueError(f"{unsplit}: has no split, and other slides have; write train or validation for each, or none")
    if not assigned:
        every = max(2, round(1 / fraction))
        dealt: list[SlideCase] = []
        for kind in ([case for case in cases if case.mask], [case for case in cases if not case.mask]):
            dealt += [
                replace(case, split="validation" if number % every == every - 1 else "train")
                for number, case in enumerate(kind)
            ]
        cases = tuple(dealt)
    train = tuple(case for case in cases if case.split == "train")
    validation = tuple(case for case in cases if case.split == "validation")
    if not train or not validation:
        raise ValueError(
            f"{len(train)} slides to train and {len(validation)} to validate on; each needs one: write a split "
            "(train or validation) for every slide of the list"
        )
    return train, validation


def _of_folder(folder: Path) -> tuple[SlideCase, ...]:
    slides = sorted(path for path in _entries(folder / "slides") if path.suffix.lower() in _SLIDES)
    if not slides:
        raise ValueError(
            f"{folder}: holds no slides/ with slides in it, and neither {_LISTS[0]} nor {_LISTS[1]}; put slides into "
            "slides/ and their masks, of the same names, into masks/"
        )
    masks = {path.stem.removesuffix("_mask"): path for path in _entries(folder / "masks") if path.suffix in _MASKS}
    cases = []
    for path in slides:
        mask = masks.get(path.stem)
        if mask is None and not path.stem.lower().startswith(_NORMAL):
            raise ValueError(
                f"{path}: has no mask {folder / 'masks' / path.stem}.tif or .xml; add it, or, if the slide has no "
                f"lesion, begin its name with {_NORMAL}, or write a {_LISTS[0]} with an empty mask"
            )
        cases.append(SlideCase(id=path.stem, slide=path, mask=mask))
    return tuple(cases)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _of_list(path: Path) -> tuple[SlideCase, ...]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows: Any = list(csv.DictReader(text.splitlines())) if path.suffix.lower() == ".csv" else json.loads(text)
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise ValueError(f"{path}: can't be read as a list of slides ({error})") from error
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{path}: names no slides; write one row for each, with slide, mask and split")
    return tuple(_case(path, number, row) for number, row in enumerate(rows, start=1))


def _case(path: Path, number: int, row: Any) -> SlideCase:
    if not isinstance(row, Mapping) or not row.get("slide"):
        raise ValueError(f"{path}: row {number} names no slide; its columns must be slide, mask, split")
    if "mask" not in row:
        raise ValueError(f"{path}: row {number} has no column mask; leave it empty where a slide has no lesion")
    slide = path.parent / str(row["slide"])
    mask = path.parent / str(row["mask"]) if row["mask"] else None
    split = str(row.get("split") or "").strip()
    if split not in _SPLITS:
        raise ValueError(f"{path}: row {number}: split is {split!r}; write train, validation or nothing")
    for kind, file in (("slide", slide), ("mask", mask)):
        if file is not None and not file.is_file():
            raise ValueError(f"{path}: row {number}: the {kind} {file} is not there; correct the path")
    return SlideCase(id=slide.stem, slide=slide, mask=mask, split=split)  # type: ignore[arg-type]
