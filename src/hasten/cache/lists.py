"""The list of a set's cases: which shards they lie in. Cases are found in shards by their key, whatever set they were
prepared for, so that a set with a new case needs just that one prepared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hasten.cache.checked import DamagedEntry, read_checked, write_checked
from hasten.cache.file import INDEX, Selection, Shard, key_array, read_shard
from hasten.cache.key import digest, entry_name
from hasten.cache.publish import discard, sweep
from hasten.cases.types import CaseSet

log = logging.getLogger(__name__)

SHARDS, LISTS = "arena", "sets"
"""Folders of a cache folder."""


class CaseQuery(NamedTuple):
    """What is looked for in a cache folder."""

    folder: Path
    """`cache.dir`."""
    case_set: CaseSet
    settings: str
    """`settings_key` of how the cases are prepared."""
    keys: tuple[str, ...]
    """`Files.identities` of the cases."""

    @property
    def list_path(self) -> Path:
        return self.folder / LISTS / f"{self.entry_name(self.keys)}.json"

    def shard_folder(self, missing: Sequence[int]) -> Path:
        """Folder of the shard to build, which begins with the first of these cases."""
        return self.folder / SHARDS / self.entry_name([self.keys[case] for case in missing])

    def entry_name(self, keys: Sequence[str]) -> str:
        return entry_name(self.case_set.name, f"{self.settings}-{digest(list(keys))}")


def read_list(query: CaseQuery) -> Selection | None:
    """The listed cases, whose voxels are still unread; None where there is no usable list.

    Raises DamagedEntry for a shard that is missing or damaged.
    """
    path = query.list_path
    try:
        body = read_checked(path)
    except FileNotFoundError:
        return None
    except DamagedEntry as damage:
        log.warning("the list of a set is damaged, and its cases are looked up again: %s", damage)
        return None
    shards = []
    for name in body["shards"]:
        folder = query.folder / SHARDS / name
        try:
            shards.append(read_shard(folder))
        except FileNotFoundError:
            raise DamagedEntry(f"is missing, but {path.name} names cases of it", folder / INDEX) from None
    runs = np.array(body["runs"], dtype=np.int64).reshape(-1, 2)
    rows = np.concatenate([np.arange(first, first + count) for first, count in runs])
    keys = np.concatenate([shard.keys for shard in shards])
    # A list of the right name with other cases refers to a shard that was rebuilt with fewer cases.
    same = all(shard.settings == query.settings for shard in shards) and rows.max() < len(keys)
    if not same or not np.array_equal(keys[rows], key_array("".join(query.keys))):
        return None
    return Selection(tuple(shards), rows)


def write_list(query: CaseQuery, cases: Selection) -> None:
    """Write the list of the cases. If the folder is read-only, the next run searches the shards again."""
    path, breaks = query.list_path, np.flatnonzero(np.diff(cases.rows) != 1) + 1
    runs = [[int(run[0]), len(run)] for run in np.split(cases.rows, breaks)]
    body = {
        "name": query.case_set.name,
        "source": str(query.case_set.source),
        "num_cases": len(cases.rows),
        "shards": [shard.folder.name for shard in cases.shards],
        "runs": runs,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        write_checked(path, body)
    except OSError as error:
        log.info("%s: can't be written (%s); the cases are looked up at every start", path, error)


def find_cases(query: CaseQuery) -> tuple[Selection, list[int]]:
    """The cases that shards hold, in the set's order, and the positions of the missing ones.

    Only shards whose name has the same settings are looked into. A damaged one is removed, with a warning.
    """
    shards: list[Shard] = []
    pattern = f"[!.]*-{query.settings}-*"
    for folder in sorted((query.folder / SHARDS).glob(pattern)):
        try:
            shard = read_shard(folder)
        except FileNotFoundError:
            continue
        except DamagedEntry as damage:
            log.warning("a cache entry is damaged and is removed: %s", damage)
            remove_damaged(folder, damage)
        else:
            shards += [shard] if shard.settings == query.settings else []
    keys = key_array("".join(query.keys))
    if not shards:
        return Selection((), np.zeros(0, np.int64)), list(range(len(keys)))
    place, present = _places(shards, keys)
    # Without the shards that hold none of the cases.
    number = np.searchsorted(np.cumsum([len(shard.ids) for shard in shards]), place[present], side="right")
    used = [shards[each] for each in np.unique(number)]
    rows = _places(used, keys[present])[0] if used else place[present]
    return Selection(tuple(used), rows), np.flatnonzero(~present).tolist()


def _places(shards: Sequence[Shard], keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The place of a case that has each key, among those of all shards, and whether there is one."""
    stored = np.concatenate([shard.keys for shard in shards])
    order = np.argsort(stored, kind="stable")
    place = order[np.searchsorted(stored, keys, sorter=order).clip(max=len(stored) - 1)]
    return place, stored[place] == keys


def remove_damaged(folder: Path, damage: DamagedEntry) -> None:
    """Raises ValueError where it can't be removed."""
    try:
        discard(folder)
    except OSError as error:
        raise ValueError(
            f"{folder}: a cache entry is damaged ({damage}) and can't be removed ({error.strerror}); remove it"
        ) from error
