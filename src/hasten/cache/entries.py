"""The entries of a cache folder: listing, checking and removing them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.cache.checked import DamagedEntry, read_checked
from hasten.cache.file import INDEX, SHARDS, verify_entry
from hasten.cache.publish import discard
from hasten.files import is_locked


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
    source: str = ""
    """Source of the cases; empty where the entry does not record it."""
    num_cases: int = 0


def list_entries(folder: Path) -> list[Entry]:
    """The entries of a cache folder, the one used last first. A folder that does not exist has none."""
    entries = [_arena(path) for path in _folders(folder / SHARDS)]
    servers = [server for protocol in _folders(folder / "remote") for server in _folders(protocol)]
    entries += [_copies(server, folder / "remote") for server in servers]
    for name in ("fingerprint", "measured"):
        files = [path for path in _children(folder / name) if path.is_file()]
        if files:
            entries.append(_entry(folder / name, "small", files, num_cases=len(files)))
    return sorted(entries, key=lambda entry: entry.used, reverse=True)


def verify(folder: Path) -> Iterator[tuple[Entry, str]]:
    """Every shard of a cache folder, and what is wrong with it: "" for nothing. Reads every byte."""
    for entry in list_entries(folder):
        if entry.kind == "arena":
            try:
                verify_entry(entry.path)
            except (DamagedEntry, FileNotFoundError) as damage:
                yield entry, str(damage)
            else:
                yield entry, ""


def prune(
    folder: Path, *, unused_days: float | None = None, max_bytes: int | None = None, damaged: bool = False
) -> list[Entry]:
    """Remove shards and copies of remote files; return what was removed.

    unused_days: those not used for that long. max_bytes: those used longest ago, until the rest takes no more.
    damaged: those that fail `verify`; the next run that needs their cases prepares them. What a killed build left is
    removed in any case. A shard that a process has open stays readable for that process.
    """
    bad = {entry.path for entry, wrong in verify(folder) if wrong} if damaged else set()
    total, limit = 0, time.time() - 86400 * (unused_days or 0)
    removed = []
    for entry in list_entries(folder):
        going = entry.path in bad
        if entry.kind == "unfinished":
            going = not is_locked(entry.path)
        elif entry.kind != "small" and not going:
            total += entry.num_bytes
            is_old = unused_days is not None and entry.used < limit
            going = is_old or (max_bytes is not None and total > max_bytes)
        if going:
            discard(entry.path)
            removed.append(entry)
    return removed


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _folders(folder: Path) -> list[Path]:
    hidden = [path for path in _children(folder) if path.name.startswith(".") and path.name.endswith(".partial")]
    return [path for path in _children(folder) if path.is_dir() and (not path.name.startswith(".") or path in hidden)]


def _entry(path: Path, kind: str, files: Iterable[Path], **known: Any) -> Entry:
    stats = [file.stat() for file in files]
    used = max((stat.st_mtime for stat in stats), default=path.stat().st_mtime)
    return Entry(path=path, kind=kind, num_bytes=sum(stat.st_size for stat in stats), **({"used": used} | known))


def _copies(server: Path, remote: Path) -> Entry:
    files = [file for file in server.rglob("*") if file.is_file()]
    stats = [file.stat() for file in files]
    used = max((max(stat.st_atime, stat.st_mtime) for stat in stats), default=server.stat().st_mtime)
    source = server.relative_to(remote).as_posix().replace("/", "://", 1)
    return _entry(server, "remote", files, used=used, source=source, num_cases=sum(stat.st_size > 0 for stat in stats))


def _arena(path: Path) -> Entry:
    kind, body = "unfinished" if path.name.startswith(".") else "arena", _body(path / INDEX)
    files = [file for file in path.iterdir() if file.is_file()]
    return _entry(path, kind, files, source=str(body.get("source", "")), num_cases=len(body.get("cases", ())))


def _body(path: Path) -> dict[str, Any]:
    """What an index holds; nothing where it is missing or damaged."""
    try:
        return read_checked(path)
    except (FileNotFoundError, DamagedEntry):
        return {}
