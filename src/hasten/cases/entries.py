"""Shared by the readers of case lists: unchecked listings, their entries, and JSON errors with line and column."""

from __future__ import annotations

import gc
import json
import re
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from hasten.cases.formats import stem
from hasten.cases.locate import FileLocator, Remote
from hasten.cases.types import Case
from hasten.config.url import shown

_LONGEST_ID = 200
"""Bytes: of the 255 that a file name may have, the endings of predictions and temporary files need some."""
_BATCH = 256
T = TypeVar("T")
Part = Literal["train", "val", "test"]
_PARTS: dict[str, Part] = {
    "": "train", "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val",
    "test": "test", "testing": "test",
}  # fmt: skip
"""Words for the part of the cases that an entry belongs to."""
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Cases as a source declares them. None: not declared, to be read from the files."""

    name: str
    source: Path
    cases: tuple[Case, ...]
    labels: dict[int, str] | None = None
    channels: tuple[str, ...] | None = None
    modality: str = ""
    remote: tuple[Remote, ...] = ()
    """Files of the cases that are elsewhere; their paths are those of local copies, which may be still to come."""
    regions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Overlapping classes, name to label values, as in CaseSet."""
    region_values: dict[str, int] = field(default_factory=dict)
    """Label value that each region is painted with (nnU-Net's regions_class_order), as in CaseSet."""
    ignore: int | None = None
    """Label value of voxels that are not annotated, as in CaseSet."""
    held_out: tuple[str, ...] = ()
    """Ids of the cases that the source itself holds out for validation, as in CaseSet."""


class Entry(NamedTuple):
    """A case of a list."""

    case: Case
    remote: list[Remote]
    """Files of the case that are to be fetched."""
    part: Part


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
    except RecursionError:
        raise ValueError(f"{path}: is nested too deeply to be a list of cases; correct it.") from None
    except ValueError:  # the only other error of Python's parser
        raise ValueError(f"{path}: holds a number of thousands of digits; correct it.") from None


def case_from_entry(entry: object, place: FileLocator, where: str) -> Entry:
    """A case from `{"id", "image": str | list, "label", "sha256", "split"}`.

    Relative names start at `place`. `split` is train (as without it), val or test. `sha256`,
    `{"image": str | list, "label": str}`, is what the content of remote files must have. Raises ValueError.
    """
    if not isinstance(entry, dict):
        raise ValueError(f'{where}: must be {{"image": ..., "label": ...}}, not {shown(repr(entry))}.')
    image, label = entry.get("image"), entry.get("label")
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
            f"rename it: text without slashes, of {_LONGEST_ID} bytes at most."
        )
    case = Case(id=str(case_id), image=tuple(paths), label=label_path)
    return Entry(case, [each for each in files if isinstance(each, Remote)], _part(entry.get("split"), where))


def _part(value: object, where: str) -> Part:
    part = _PARTS.get(str(value or "").strip().lower())
    if part is None:
        raise ValueError(f'{where}: "split" is {shown(repr(value))}; write train, val or test, or rename the field.')
    return part


def _file_name(text: str) -> bool:
    size = len(text.encode(errors="replace"))
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


def join_entries(entries: Iterable[Entry]) -> dict[str, Any]:
    """The fields of a Listing that the entries provide; those of the part `test` are left out."""
    labelled = [entry for entry in entries if entry.part != "test"]
    return {
        "cases": tuple(entry.case for entry in labelled),
        "remote": tuple(each for entry in labelled for each in entry.remote),
        "held_out": tuple(entry.case.id for entry in labelled if entry.part == "val"),
    }


def batched(items: Sequence[T], num_threads: int) -> list[Sequence[T]]:
    """Items in batches for threads: dispatching small pictures one by one takes longer than reading them."""
    size = max(1, min(_BATCH, len(items) // (4 * num_threads)))
    return [items[start : start + size] for start in range(0, len(items), size)]
