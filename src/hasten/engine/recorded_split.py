"""The split that a run was begun with, in its plan.json: resumed, it must not train on what it was validated on."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from hasten.cases.types import Case
from hasten.files import size_of
from hasten.observe.rundir import PLAN_JSON

log = logging.getLogger(__name__)

_SHOWN = 5
_REMEDY = "restore the data set, or train into another --out"


def split_record(train: Iterable[Case], validation: Iterable[Case]) -> dict[str, dict[str, int]]:
    """Ids of the cases of both parts, each with the bytes of its files."""
    return {
        part: {case.id: size_of([*case.image, *([case.label] if case.label else [])]) for case in cases}
        for part, cases in (("train", train), ("validation", validation))
    }


def require_same_cases(run: Path, train: Iterable[Case], validation: Iterable[Case]) -> None:
    """Raise ValueError where these are not the parts that a run was begun with; warn of files of another size.

    Nothing is checked in a run that has no record, as of an earlier version.
    """
    try:
        before = json.loads((run / PLAN_JSON).read_text(encoding="utf-8"))["cases"]
        was = {part: {str(key): int(size) for key, size in before[part].items()} for part in ("train", "validation")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return
    now = split_record(train, validation)
    old, new = ({key for cases in record.values() for key in cases} for record in (was, now))
    groups = {
        "added": new - old,
        "gone": old - new,
        "trained on before and validated now": was["train"].keys() & now["validation"].keys(),
        "validated before and trained on now": was["validation"].keys() & now["train"].keys(),
    }
    changes = [f"{_named(keys)} {what}" for what, keys in groups.items() if keys]
    if changes:
        raise ValueError(f"{run}: the cases are not those that it was begun with: {'; '.join(changes)}. {_REMEDY}")
    resized = [key for part, cases in now.items() for key, size in cases.items() if size != was[part][key]]
    if resized:
        log.warning(
            "%s: files of %s have another size than when it was begun; if they are not meant to differ, %s",
            run, _named(resized), _REMEDY,
        )  # fmt: skip


def _named(ids: Iterable[str]) -> str:
    ids = sorted(ids)
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
