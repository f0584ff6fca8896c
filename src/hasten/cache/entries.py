"""The entries of a cache folder: listing, checking and removing them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.cache.checked import DamagedEntry, read_checked
from hasten.cache.file import INDEX, verify_entry
from hasten.cache.lists import LISTS, SHARDS
from hasten.cache.publish import discard
from hasten.config.patterns import first_few
from hasten.files import is_locked


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry of a cache folder."""

    path: Path
    kind: str
    """`arena` (a shard of prepared cases), `set` (the list of a set's cases), `unfinished` (a build that was stopped),
    `remote` (copies of a server's files) or `small` (fingerprints and measurements)."""
    num_bytes: int
    used: float
    """Seconds since the epoch: when a run last opened it, or it was written."""
    source: str = ""
    """Source of the cases; empty where the entry does not record it."""
    num_cases: int = 0
    shards: tuple[str, ...] = ()
    """Names of the shards that the cases of a set lie in."""


def list_entries(folder: Path) -> list[Entry]:
    """The entries of a cache folder, the one used last first. A folder that does not exist has none."""
    entries = [_arena(path) for path in _folders(folder / SHARDS)]
    entries += [_set(path) for path in _children(folder / LISTS) if not path.name.startswith(".")]
    servers = [server for protocol in _folders(folder / "remote") for server in _folders(protocol)]
    entries += [_copies(server, folder / "remote") for server in servers]
    for name in ("fingerprint", "measured"):
        files = [path for path in _children(folder / name) if path.is_file()]
        if files:
            entries.append(_entry(folder / name, "small", files, num_cases=len(files)))
    return sorted(entries, key=lambda entry: entry.used, reverse=True)


def verify(folder: Path) -> Iterator[tuple[Entry, str]]:
    """Every shard and list of a cache folder, and what is wrong with it: "" for nothing. Reads every byte."""
    for entry in list_entries(folder):
        if entry.kind not in ("arena", "set"):
            continue
        try:
            if entry.kind == "arena":
                verify_entry(entry.path)
            else:
                read_checked(entry.path)
        except (DamagedEntry, FileNotFoundError) as damage:
            yield entry, str(damage)
        else:
            missing = [name for name in entry.shards if not (folder / SHARDS / name / INDEX).exists()]
            yield entry, f"{entry.path}: names cases of {first_few(missing)}, which are gone" if missing else ""


def prune(
    folder: Path, *, unused_days: float | None = None, max_bytes: int | None = None, damaged: bool = False
) -> list[Entry]:
    """Remove sets, the shards that no other set needs, and copies of remote files; return what was removed.

    unused_days: those not used for that long. max_bytes: those used longest ago, until the rest takes no more.
    damaged: those that fail `verify`; the next run of a set prepares what it then lacks. Builds that were stopped are
    removed in any case, and shards that no set names, unless a build is going on, whose list is still to come. A shard
    that a process has open stays readable for that process.
    """
    entries = [entry for entry in list_entries(folder) if entry.kind != "small"]
    building = {entry.path for entry in entries if entry.kind == "unfinished" and is_locked(entry.path)}
    shards = {entry.path.name: entry for entry in entries if entry.kind == "arena"}
    going = {entry.path for entry in entries if entry.kind == "unfinished"} - building
    if damaged:
        going |= {entry.path for entry, wrong in verify(folder) if wrong}
    lost = {entry.path.name for entry in entries if entry.kind == "arena" and entry.path in going}
    needed: dict[str, Entry] = {}
    for entry in entries:
        if entry.kind == "set" and lost & set(entry.shards):
            # The other cases stay: the next run looks them up.
            going.add(entry.path)
            needed |= {name: shards[name] for name in entry.shards if name in shards and name not in lost}
    total, limit = 0, time.time() - 86400 * (unused_days or 0)
    for entry in entries:
        if entry.kind not in ("set", "remote") or entry.path in going:
            continue
        new = {name: shards[name] for name in entry.shards if name in shards and name not in needed}
        total += entry.num_bytes + sum(each.num_bytes for each in new.values())
        if (unused_days is not None and entry.used < limit) or (max_bytes is not None and total > max_bytes):
            going.add(entry.path)
        else:
            needed |= new
    # Unused shards also stay while a list is unreadable: the next run looks its cases up again.
    if not building and all(entry.shards for entry in entries if entry.kind == "set"):
        going |= {entry.path for name, entry in shards.items() if name not in needed}
    removed = [entry for entry in entries if entry.path in going]
    # Lists first, so that a kill leaves none of removed shards.
    for entry in sorted(removed, key=lambda entry: entry.kind != "set"):
        if entry.kind == "set":
            entry.path.unlink(missing_ok=True)
        else:
            discard(entry.path)
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


def _set(path: Path) -> Entry:
    body = _body(path)
    return _entry(
        path,
        "set",
        [path],
        source=str(body.get("source", "")),
        num_cases=int(body.get("num_cases", 0)),
        shards=tuple(body.get("shards", ())),
    )


def _arena(path: Path) -> Entry:
    kind, body = "unfinished" if path.name.startswith(".") else "arena", _body(path / INDEX)
    files = [file for file in path.iterdir() if file.is_file()]
    return _entry(path, kind, files, source=str(body.get("source", "")), num_cases=len(body.get("cases", ())))


def _body(path: Path) -> dict[str, Any]:
    """What a list or index holds; nothing where it is missing or damaged."""
    try:
        return read_checked(path)
    except (FileNotFoundError, DamagedEntry):
        return {}
