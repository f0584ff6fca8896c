"""The entries of a cache folder: listing, checking and removing them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
    source: str
    """Where the cases came from; empty where the entry does not record it."""
    num_cases: int
    used: float
    """Seconds since the epoch: when a run last opened it, or it was written."""
    shards: tuple[str, ...] = ()
    """Of a set: names of the shards that its cases lie in."""


def list_entries(folder: Path) -> list[Entry]:
    """The entries of a cache folder, the one used last first. A folder that does not exist has none."""
    entries = [_arena(path) for path in _folders(folder / SHARDS)]
    entries += [_set(path) for path in _children(folder / LISTS) if not path.name.startswith(".")]
    servers = [server for protocol in _folders(folder / "remote") for server in _folders(protocol)]
    entries += [_copies(server, folder / "remote") for server in servers]
    for name in ("fingerprint", "measured"):
        files = [path for path in _children(folder / name) if path.is_file()]
        if files:
            used = max(path.stat().st_mtime for path in files)
            size = sum(path.stat().st_size for path in files)
            entries.append(
                Entry(path=folder / name, kind="small", num_bytes=size, source="", num_cases=len(files), used=used)
            )
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
    needed: dict[str, Entry] = {}
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
    for entry in sorted(
        removed, key=lambda entry: entry.kind != "set"
    ):  # so that a kill leaves no list of removed shards
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


def _copies(server: Path, remote: Path) -> Entry:
    stats = [file.stat() for file in server.rglob("*") if file.is_file()]
    return Entry(
        path=server,
        kind="remote",
        num_bytes=sum(stat.st_size for stat in stats),
        source=server.relative_to(remote).as_posix().replace("/", "://", 1),
        num_cases=sum(stat.st_size > 0 for stat in stats),
        used=max((max(stat.st_atime, stat.st_mtime) for stat in stats), default=server.stat().st_mtime),
    )


def _set(path: Path) -> Entry:
    status = path.stat()
    try:
        body = read_checked(path)
    except DamagedEntry:
        body = {}
    return Entry(
        path=path, kind="set", num_bytes=status.st_size, source=str(body.get("source", "")),
        num_cases=int(body.get("num_cases", 0)), used=status.st_mtime, shards=tuple(body.get("shards", ())),
    )  # fmt: skip


def _arena(path: Path) -> Entry:
    files = [file for file in path.iterdir() if file.is_file()]
    stats = [file.stat() for file in files]
    used = max((stat.st_mtime for stat in stats), default=path.stat().st_mtime)
    source, cases = "", 0
    try:
        index = read_checked(path / INDEX)
        source, cases = str(index.get("source", "")), len(index.get("cases", ()))
    except (FileNotFoundError, DamagedEntry):
        pass
    return Entry(
        path=path,
        kind="unfinished" if path.name.startswith(".") else "arena",
        num_bytes=sum(stat.st_size for stat in stats),
        source=source,
        num_cases=cases,
        used=used,
    )
