"""Shared by the readers of case lists: unchecked listings, their entries, and JSON errors with line and column."""

from __future__ import annotations

import csv
import gc
import json
import logging
import os
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from hasten.cases.formats import stem
from hasten.cases.locate import FileLocator, Remote
from hasten.cases.types import Case, Declared
from hasten.config.patterns import first_few
from hasten.config.url import shown

log = logging.getLogger(__name__)

_LONGEST_ID = 200
"""Bytes: of the 255 that a file name may have, the endings of predictions and temporary files need some."""
_BATCH = 256
T = TypeVar("T")
Part = Literal["train", "val", "test"]
PARTS: dict[str, Part] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""Words for the part of the cases that an entry belongs to, in its field `split` or as the name of a list."""
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing(Declared):
    """Cases as a source declares them. None: not declared, to be read from the files."""

    labels: dict[int, str] | None = None
    channels: tuple[str, ...] | None = None
    remote: tuple[Remote, ...] = ()
    """Files of the cases that are elsewhere; their paths are those of local copies, which may be still to come."""
    tests: tuple[Case, ...] = ()
    """Labelled cases that are neither trained nor validated on; their files are not looked for."""


class Entry(NamedTuple):
    """A case of a list."""

    case: Case
    remote: list[Remote]
    """Files of the case that are to be fetched."""
    part: Part | None
    """None if the entry doesn't say."""
    fold: int | None
    """Fold in which the case is validated on."""


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause Python's garbage collector in the block: the descriptions of many cases live long and have no cycles.

    With torch and MONAI loaded, collecting takes a third of the time of listing a set of many small images.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_text(path: Path) -> str:
    """The content of a text file. Raises ValueError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); check the path and that it is UTF-8 text.") from error


def load_json(path: Path) -> Any:
    """Parse a JSON file. Raises ValueError, with line and column where it is not JSON."""
    text = read_text(path)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}: is not valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); correct it there."
        ) from error
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{path}: is no list of cases ({error}); correct it.") from None


def read_rows(path: Path, required: Sequence[str], optional: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of a CSV table, each with its place for errors; by column, whose names are made lower case.

    required, optional: columns that are read; others are logged. Raises ValueError.
    """
    reader = csv.reader(read_text(path).splitlines())
    try:
        columns = [name.strip().lower() for name in next(reader, [])]
        repeated = [name for name, count in Counter(columns).items() if name and count > 1]
        if repeated:
            raise ValueError(f"{path}: has several columns {repeated[0]!r}; rename or remove all but one.")
        missing = [name for name in required if name not in columns]
        if missing:
            raise ValueError(
                f'{path}: has no column "{missing[0]}" (its first line names {columns}); '
                f"name the columns {','.join(required)} in the first line."
            )
        log_unread(columns, (*required, *optional), str(path))
        for fields in reader:
            if not any(field.strip() for field in fields):
                continue
            where = f"{path}: line {reader.line_num}"
            if len(fields) != len(columns):
                raise ValueError(
                    f"{where}: has {len(fields)} fields, but the first line names {len(columns)} columns; "
                    "correct the line, with quotes around each field that holds a comma."
                )
            yield where, dict(zip(columns, (field.strip() for field in fields), strict=True))
    except csv.Error as error:
        raise ValueError(f"{path}: is not valid CSV near line {reader.line_num} ({error}); correct it there.") from None


def log_unread(names: Iterable[str], known: Sequence[str], where: str) -> None:
    """Log the names of columns or fields that are not read: one of them may mean one that is."""
    unread = [name for name in names if name and name not in known]
    if unread:
        log.info("%s: not read: %s; read are %s", where, ", ".join(unread), ", ".join(known))


def case_from_entry(entry: object, place: FileLocator, where: str) -> Entry | None:
    """A case from `{"id", "image": str | list, "label", "sha256", "split", "fold"}`; None to test without label.

    Relative names start at `place`. `split` and `fold` are as `read_part` and `read_fold` take them. `sha256`,
    `{"image": str | list, "label": str}`, is what the content of remote files must have. Raises ValueError.
    """
    if not isinstance(entry, dict):
        raise ValueError(f'{where}: must be {{"image": ..., "label": ...}}, not {shown(repr(entry))}.')
    part, fold = read_part(entry.get("split"), where), read_fold(entry.get("fold"), where)
    image, label = entry.get("image"), entry.get("label")
    if part == "test" and not label:
        return None
    names = [image] if isinstance(image, str) else image
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f'{where}: "image" must name a file or a list of files, not {shown(repr(image))}.')
    if not isinstance(label, str) or not label:
        raise ValueError(f'{where}: "label" must name the label map of {shown(names[0])}, not {label!r}.')
    hashes = _hashes(entry.get("sha256"), len(names), where)
    files = [place.find(name, where, sha256) for name, sha256 in zip([*names, label], hashes, strict=True)]
    *paths, label_path = [each.path if isinstance(each, Remote) else each for each in files]
    case_id = stem(paths[0]) if entry.get("id") in (None, "") else entry["id"]
    if not isinstance(case_id, str | int) or not _file_name(str(case_id)):
        raise ValueError(
            f"{where}: the id {reprlib.repr(case_id)} can't be a file name, which ids become; "
            f"rename it: text without slashes (on Windows also without : * ? and such), of {_LONGEST_ID} bytes at most."
        )
    case = Case(id=str(case_id), image=tuple(paths), label=label_path)
    return Entry(case, [each for each in files if isinstance(each, Remote)], part, fold)


def read_part(value: object, where: str) -> Part | None:
    """The part that the field `split` names; None if it is empty. Raises ValueError for another word."""
    word = _text(value).lower()
    if word and word not in PARTS:
        raise ValueError(f'{where}: "split" is {shown(repr(value))}; write train, val or test, or rename the field.')
    return PARTS.get(word)


def _text(value: object) -> str:
    """A field as text: "" for null, and for the NaN that tables write for an empty field."""
    return "" if value is None or value != value else str(value).strip()


def check_parts(parts: Mapping[str, Part | None], where: str) -> None:
    """Raise ValueError for cases, by id, that are in no part, where others are said to be trained on.

    Where only those to validate on or to test are marked, the others are trained on.
    """
    if "train" not in parts.values():
        return
    unsaid = [case_id for case_id, part in parts.items() if part is None]
    if unsaid:
        raise ValueError(
            f'{where}: {len(unsaid)} cases have no "split", and others have: {first_few(unsaid)}; write train, val or '
            "test for each of them."
        )


def read_fold(value: object, where: str) -> int | None:
    """The number of the fold in which a case is validated on; None if the field `fold` is empty. Raises ValueError."""
    text = _text(value)
    if not text:
        return None
    whole = re.fullmatch(r"(\d{1,6})(\.0*)?", text, re.ASCII)  # tables write 1.0 where other fields are empty
    if not whole:
        raise ValueError(
            f'{where}: "fold" is {shown(repr(value))}; number the folds 0, 1, 2, ..., and leave it empty for a case '
            "that is trained on in every fold."
        )
    return int(whole[1])


def _file_name(text: str) -> bool:
    size = len(text.encode(errors="replace"))
    if os.name == "nt" and (text.endswith((".", " ")) or set('<>:"|?*') & set(text)):
        return False
    return not set("/\\\0") & set(text) and text.strip() not in ("", ".", "..") and size <= _LONGEST_ID


def _hashes(value: object, num_images: int, where: str) -> list[str | None]:
    """The SHA-256 of every image file, then of the label; None if not declared."""
    fields = value or {}
    if isinstance(fields, dict) and set(fields) <= {"image", "label"}:
        image = fields.get("image") or [None] * num_images
        hashes = [each or None for each in [*(image if isinstance(image, list) else [image]), fields.get("label")]]
        sound = all(each is None or (isinstance(each, str) and _SHA256.fullmatch(each)) for each in hashes)
        if sound and len(hashes) == num_images + 1:
            return hashes
    raise ValueError(
        f'{where}: "sha256" must be {{"image": ..., "label": ...}} with 64 hexadecimal digits for every file, '
        f"not {value!r}."
    )


def join_entries(entries: Iterable[Entry | None], where: str) -> dict[str, Any]:
    """The fields of a Listing that the entries provide; None is a case that is left out. Raises ValueError."""
    listed = [entry for entry in entries if entry is not None]
    used = [entry for entry in listed if entry.part != "test"]
    check_parts({entry.case.id: entry.part for entry in used}, where)
    return {
        "cases": tuple(entry.case for entry in used),
        "remote": tuple(each for entry in used for each in entry.remote),
        "held_out": tuple(entry.case.id for entry in used if entry.part == "val"),
        "folds": {entry.case.id: entry.fold for entry in used if entry.fold is not None},
        "tests": tuple(entry.case for entry in listed if entry.part == "test"),
    }


def batched(items: Sequence[T], num_threads: int) -> list[Sequence[T]]:
    """Items in batches for threads: dispatching small pictures one by one takes longer than reading them."""
    size = max(1, min(_BATCH, len(items) // (4 * num_threads)))
    return [items[start : start + size] for start in range(0, len(items), size)]
