"""Lists slides with their masks: from a CSV list, or a folder with slides/ and masks/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hasten.cases.entries import Part, check_parts, read_part, read_rows

_LIST = "slides.csv"
_SLIDES = (".tif", ".tiff", ".svs", ".ndpi", ".mrxs", ".scn", ".vms", ".bif", ".svslide")
_MASKS = (".tif", ".tiff", ".xml")
_NORMAL = "normal"
"""A slide whose name begins so has no lesions, as Camelyon's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideCase:
    """A slide and what is known of it."""

    id: str
    slide: Path
    mask: Path | None
    """None if it has no lesion."""
    part: Part | None = None
    """Part that the list assigns the slide to; None if it doesn't say."""


def find_slides(source: str | Path) -> tuple[SlideCase, ...]:
    """The slides of a list, or of a folder that holds one or has slides/ and masks/. Their files are not opened.

    A list has the columns slide, mask and split, which is read as in other lists (`read_part`), and slides to
    test are left out; paths are relative to it; an empty mask means no lesion. In a
    folder, a slide's mask has its name, with or without _mask behind it; slides called normal... need none.
    Raises ValueError for any other source, a missing slide or mask, and two slides of one name.
    """
    source = Path(source)
    if source.is_dir():
        listed = source / _LIST
        cases = _of_list(listed) if listed.is_file() else _of_folder(source)
    elif source.is_file() and source.suffix.lower() == ".csv":
        cases = _of_list(source)
    else:
        raise ValueError(f"{source}: give a folder with slides/ and masks/, or a CSV list of slide, mask and split")
    ids = [case.id for case in cases]
    twice = sorted({each for each in ids if ids.count(each) > 1})
    if twice:
        raise ValueError(f"{source}: several slides are called {twice[0]}; give each a name of its own")
    check_parts({case.id: case.part for case in cases}, str(source))
    return tuple(case for case in cases if case.part != "test")


def split_slides(cases: tuple[SlideCase, ...], fraction: float) -> tuple[tuple[SlideCase, ...], tuple[SlideCase, ...]]:
    """The slides to train and to validate on. If the list marks none for validation, every n-th slide is one.

    Slides with and without lesions are split separately, so that both parts have some of each if possible.
    Raises ValueError where one of them would be empty.
    """
    validated = {case.id for case in cases if case.part == "val"}
    if not validated:
        every = max(2, round(1 / fraction))
        for kind in ([case for case in cases if case.mask], [case for case in cases if not case.mask]):
            validated |= {case.id for case in kind[every - 1 :: every]}
    train = tuple(case for case in cases if case.id not in validated)
    validation = tuple(case for case in cases if case.id in validated)
    if not train or not validation:
        raise ValueError(
            f"{len(train)} slides to train and {len(validation)} to validate on; each needs one: write a split "
            "(train or val) for every slide of the list"
        )
    return train, validation


def _of_folder(folder: Path) -> tuple[SlideCase, ...]:
    slides = sorted(path for path in _entries(folder / "slides") if path.suffix.lower() in _SLIDES)
    if not slides:
        raise ValueError(
            f"{folder}: holds no slides/ with slides in it, and no {_LIST}; put slides into "
            "slides/ and their masks, of the same names, into masks/"
        )
    masks = {path.stem.removesuffix("_mask"): path for path in _entries(folder / "masks") if path.suffix in _MASKS}
    cases = []
    for path in slides:
        mask = masks.get(path.stem)
        if mask is None and not path.stem.lower().startswith(_NORMAL):
            raise ValueError(
                f"{path}: has no mask {folder / 'masks' / path.stem}.tif or .xml; add it, or, if the slide has no "
                f"lesion, begin its name with {_NORMAL}, or write a {_LIST} with an empty mask"
            )
        cases.append(SlideCase(id=path.stem, slide=path, mask=mask))
    return tuple(cases)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _of_list(path: Path) -> tuple[SlideCase, ...]:
    cases = []
    for where, row in read_rows(path, ("slide", "mask"), ("split",)):
        if not row["slide"]:
            raise ValueError(f"{where}: names no slide; its columns must be slide, mask, split")
        slide = path.parent / row["slide"]
        mask = path.parent / row["mask"] if row["mask"] else None
        for kind, file in (("slide", slide), ("mask", mask)):
            if file is not None and not file.is_file():
                raise ValueError(f"{where}: the {kind} {file} is not there; correct the path")
        cases.append(SlideCase(id=slide.stem, slide=slide, mask=mask, part=read_part(row.get("split"), where)))
    if not cases:
        raise ValueError(f"{path}: names no slides; write one row for each, with slide, mask and split")
    return tuple(cases)
