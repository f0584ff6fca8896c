"""The cases that a run was begun with, in its plan.json.

Resumed, a run must not train on what it was validated on; and cases that it trained on are no test of it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from hasten.cache.key import parts_of
from hasten.cases.types import Case
from hasten.config.patterns import first_few
from hasten.files import hash_file
from hasten.observe.rundir import PLAN_JSON

log = logging.getLogger(__name__)

_SHOWN = 5
_REMEDY = "restore the data set, or train into another --out"
_HASHED_BYTES = 2**28
"""Files are hashed if all of their kind are no larger together: a fraction of a second at the start of a run."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What the files of an image, or of a label map, were."""

    path: str
    """Real path of the first."""
    bytes: int
    modified_ns: int
    sha256: str | None
    """Digest of their contents; None in data sets that are too large to be hashed."""


Record = dict[str, dict[str, dict[str, FileRecord]]]
"""Files by the part, "train" or "validation", by the case's id, and by "image" or "label"."""


def split_record(train: Sequence[Case], validation: Sequence[Case]) -> Record:
    """What plan.json holds of both parts."""
    cases = (*train, *validation)
    images = _records({case.id: case.image for case in cases})
    labels = _records({case.id: [case.label] for case in cases if case.label})
    both = {key: {"image": image, **({"label": labels[key]} if key in labels else {})} for key, image in images.items()}
    parts = {"train": train, "validation": validation}
    return {part: {case.id: both[case.id] for case in of_part} for part, of_part in parts.items()}


def require_same_cases(run: Path, train: Sequence[Case], validation: Sequence[Case]) -> None:
    """Raise ValueError where these are not the parts that a run was begun with; warn of files that are not the same.

    Nothing is checked in a run that has no record, as of an earlier version.
    """
    was = _read(run)
    if was is None:
        return
    now = split_record(train, validation)
    old, new = ({key for cases in record.values() for key in cases} for record in (was, now))
    groups = {
        "added": new - old,
        "gone": old - new,
        "trained on before and validated now": was["train"].keys() & now["validation"].keys(),
        "validated before and trained on now": was["validation"].keys() & now["train"].keys(),
    }
    changes = [f"{first_few(sorted(keys), _SHOWN)} {what}" for what, keys in groups.items() if keys]
    if changes:
        raise ValueError(f"{run}: the cases are not those that it was begun with: {'; '.join(changes)}. {_REMEDY}")
    edited = {
        key
        for part, cases in now.items()
        for key, files in cases.items()
        for kind, file in files.items()
        if kind in was[part][key] and _differs(was[part][key][kind], file)
    }
    if edited:
        log.warning(
            "%s: files of %s have changed since it was begun; if they are not meant to differ, %s. Where their times "
            "are the same, cached voxels may be those from before (cache.hash_content=true)",
            run,
            first_few(sorted(edited), _SHOWN),
            _REMEDY,
        )


def trained_on(runs: Iterable[Path], files: Mapping[str, Sequence[Path]], kind: str) -> dict[str, list[str]]:
    """The cases that runs were trained on, each with the paths of these runs.

    files: those of each case's image, or label map, as `kind` says. A case is the same if the content of its image is,
    or its id and the content of its label map, which may be empty; or, where no content was recorded, path, size and
    time. Equal names alone say nothing. A run without a record counts as none.
    """
    now = _records(files, hashed=False)
    found: dict[str, list[str]] = {}
    for run in runs:
        trained = {key: each[kind] for key, each in (_read(run) or {}).get("train", {}).items() if kind in each}
        unhashed = {(each.path, each.bytes, each.modified_ns) for each in trained.values() if each.sha256 is None}
        hashes = {(key if kind == "label" else "", each.bytes, each.sha256) for key, each in trained.items()}
        sizes = {(key, size) for key, size, sha256 in hashes if sha256 is not None}
        for key, file in now.items():
            name = key if kind == "label" else ""
            if (file.path, file.bytes, file.modified_ns) in unhashed or (
                (name, file.bytes) in sizes and (name, file.bytes, _hash(files[key])) in hashes
            ):
                found.setdefault(key, []).append(str(run))
    return found


def _differs(before: FileRecord, now: FileRecord) -> bool:
    """Whether the files of a case are others than a run was begun with; by their time where no content is known."""
    if now.bytes != before.bytes:
        return True
    if None not in (before.sha256, now.sha256):
        return now.sha256 != before.sha256
    return now.path == before.path and now.modified_ns != before.modified_ns


def _records(files: Mapping[str, Sequence[Path]], *, hashed: bool = True) -> dict[str, FileRecord]:
    """The record of each case's files. hashed: with their contents, unless these are too large."""
    statuses = {key: [part.stat() for path in paths for part in parts_of(path)] for key, paths in files.items()}
    sizes = {key: sum(each.st_size for each in of_case) for key, of_case in statuses.items()}
    hashed = hashed and sum(sizes.values()) <= _HASHED_BYTES
    return {
        key: FileRecord(
            path=str(paths[0].resolve()),
            bytes=sizes[key],
            modified_ns=max((each.st_mtime_ns for each in statuses[key]), default=0),
            sha256=_hash(paths) if hashed else None,
        )
        for key, paths in files.items()
    }


def _hash(paths: Sequence[Path]) -> str:
    parts = [hash_file(part) for path in paths for part in parts_of(path)]
    return parts[0] if len(parts) == 1 else hashlib.sha256("".join(parts).encode()).hexdigest()


def _read(run: Path) -> Record | None:
    """The record of a run; None where there is none."""
    try:
        content = json.loads((run / PLAN_JSON).read_text(encoding="utf-8"))["cases"]
        return TypeAdapter(Record).validate_python({part: content[part] for part in ("train", "validation")})
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
