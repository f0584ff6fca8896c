"""The entries of a cache folder: listing and removing them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hasten.cache.file import SHARDS
from hasten.cache.publish import discard, lock_of
from hasten.system import remove_lock, try_lock


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a cache folder."""

    path: Path
    kind: str
    """`arena` (a shard of prepared cases), `unfinished` (one that is built, or was when its process was killed),
    `remote` (copies of a server's files) or `small` (fingerprints and measurements)."""
    num_bytes: int
    used: float
    """Seconds since the epoch: when a run last opened it, or it was written."""


def list_entries(folder: Path) -> list[Entry]:
    """The entries of a cache folder, the one used last first. A folder that does not exist has none."""
    kinds = {
        "arena": (folder / SHARDS).glob("[!.]*"),
        "unfinished": (folder / SHARDS).glob(".*.partial"),
        "remote": (folder / "remote").glob("*/*"),
        "small": (each for name in ("fingerprint", "measured") for each in folder.glob(name)),
    }
    entries = []
    for kind, paths in kinds.items():
        for path in paths:
            with suppress(FileNotFoundError):  # another process has just published or removed it
                entries += [_entry(path, kind)] if path.is_dir() else []
    return sorted(entries, key=lambda entry: entry.used, reverse=True)


def prune(folder: Path, *, unused_days: float | None = None, max_bytes: int | None = None) -> list[Entry]:
    """Remove shards and copies of remote files; return what was removed.

    unused_days: those not used for that long. max_bytes: those used longest ago, until the rest takes no more.
    What a killed build left is removed in any case. A shard that a process has open stays readable for that process.
    """
    total, limit = 0, time.time() - 86400 * (unused_days or 0)
    removed = []
    for entry in list_entries(folder):
        handle = None
        if entry.kind == "unfinished":
            with suppress(OSError):
                handle = try_lock(lock_of(entry.path))
            going = handle is not None and entry.path.exists()  # or it has just been published
        else:
            total += entry.num_bytes if entry.kind != "small" else 0
            is_old = unused_days is not None and entry.used < limit
            going = entry.kind != "small" and (is_old or (max_bytes is not None and total > max_bytes))
        if going:
            discard(entry.path)
            removed.append(entry)
        if handle is not None:
            remove_lock(lock_of(entry.path), handle)
    for lock in (folder / SHARDS).glob(".*.lock"):  # of a process that was killed before or after it built
        with suppress(OSError):
            if (handle := try_lock(lock)) is not None:
                remove_lock(lock, handle)
    return removed


def _entry(path: Path, kind: str) -> Entry:
    stats = [file.stat() for file in path.rglob("*") if file.is_file()]
    # Copies of remote files are only read after they were written.
    times = [max(stat.st_mtime, stat.st_atime if kind == "remote" else 0) for stat in stats]
    used = max(times, default=path.stat().st_mtime)
    return Entry(path=path, kind=kind, num_bytes=sum(stat.st_size for stat in stats), used=used)
