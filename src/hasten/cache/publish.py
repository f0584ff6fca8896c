"""Folders and files that are published and removed atomically, even if the process is killed in between.

One process builds an entry, the others wait, and what a killed process left is removed. JSON files have a checksum.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from hasten.files import replacing
from hasten.system import remove_lock, sync_folder, try_lock

log = logging.getLogger(__name__)

_ABANDONED_SECONDS = 24 * 3600.0
_LOOK_S = 0.1
_OWN_NAME = re.compile(r"\..+\.[0-9]+\.[0-9a-f]{8}")
"""The names that `temporary_for` returns."""
_WHOLE = re.compile(rb'\{"crc": (?P<crc>0|[1-9][0-9]{0,9}), "body": (?P<body>\{.*\})\}\n')


@contextmanager
def building(folder: Path, is_complete: Callable[[], bool]) -> Iterator[Path | None]:
    """The empty folder to fill, which becomes `folder` if the block succeeds; None if another process built the entry.

    Waits while another process builds. What the block wrote is removed where it fails. `is_complete` returns whether
    the entry exists. The caller syncs the files that it writes.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder.parent)
    partial, lock, owner = folder.with_name(f".{folder.name}.partial"), lock_of(folder), os.getpid()
    try:
        handle = _lock(lock, is_complete)
    except OSError as error:
        # A file system without locks: every process builds by itself, and the first to publish wins.
        log.warning("%s: can't be locked (%s); several processes may prepare the same cases", folder.parent, error)
        partial = lock = temporary_for(folder)
        handle = os.open(os.devnull, os.O_RDONLY)
    if handle is None:
        yield None
        return
    try:
        partial.mkdir(exist_ok=True)
        for leftover in partial.iterdir():
            leftover.unlink()
        yield partial
        if os.getpid() == owner:  # a child that was forked meanwhile owns nothing
            sync_folder(partial)
            if not is_complete():
                partial.rename(folder)
            sync_folder(folder.parent)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(partial, ignore_errors=True)
            remove_lock(lock, handle)


def lock_of(folder: Path) -> Path:
    """The file whose lock a process holds while it builds an entry: beside it, as open files keep it from its name."""
    return folder.with_name(f".{folder.name.removeprefix('.').removesuffix('.partial')}.lock")


def _lock(path: Path, is_complete: Callable[[], bool]) -> int | None:
    """An open handle that holds the lock, or None once the entry exists. Raises OSError."""
    logged = False
    while not is_complete():
        handle = try_lock(path)
        if handle is not None and not is_complete():
            return handle
        if handle is not None:  # its owner published the entry between the two looks
            remove_lock(path, handle)
            return None
        if not logged:
            log.info("%s: another process prepares these cases; waiting for it", path)
        logged = True
        time.sleep(_LOOK_S)
    return None


def discard(folder: Path) -> None:
    """Remove a published folder if it exists. Processes that have its files open or mapped keep them."""
    aside = temporary_for(folder)
    with suppress(FileNotFoundError):
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def as_value_error(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into one ValueError that names `folder` and the remedy."""
    remedy = "set cache.dir (or $HASTEN_CACHE) to a folder"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"{folder}: the disk is full ({error.strerror}), so the prepared cases can't be cached; free some "
                f"space or {remedy} on a larger disk. What was written is removed again."
            ) from error
        raise ValueError(
            f"{folder}: the cache can't be written or read there ({error.strerror or error}); {remedy} where it can."
        ) from error


def temporary_for(path: Path) -> Path:
    """A name next to `path` that is unique to this process and that `sweep` recognises."""
    return path.with_name(f".{path.name}.{os.getpid()}.{token_hex(4)}")


def sweep(parent: Path) -> None:
    """Remove leftovers of killed processes: what has not been written to for a day."""
    for leftover in parent.glob(".*"):
        if not _OWN_NAME.fullmatch(leftover.name) or not _is_abandoned(leftover):
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    try:
        inside = path.iterdir() if path.is_dir() else ()
        touched = max(each.stat().st_mtime for each in (path, *inside))
    except OSError:
        return False  # it is being removed
    return time.time() - touched > _ABANDONED_SECONDS


class DamagedEntry(Exception):
    """A cache entry whose bytes are not those that were written. It is rebuilt, so users only see a warning."""

    def __init__(self, what: str, path: Path | None = None) -> None:
        """path: the file that is damaged, where it is one."""
        super().__init__(what if path is None else f"{path}: {what}")
        self.path = path


def write_checked(path: Path, body: dict[str, Any]) -> None:
    """Write `body`, plain JSON values, with its checksum. Keys that are not text become text, as in JSON."""
    text = json.dumps(body).encode("ascii")
    with replacing(path, temporary_for(path)) as file:
        file.write(b'{"crc": %d, "body": %b}\n' % (zlib.crc32(text), text))


def read_checked(path: Path) -> dict[str, Any]:
    """The body that was written. Raises FileNotFoundError, or DamagedEntry for what `write_checked` did not write."""
    match = _WHOLE.fullmatch(path.read_bytes())
    if match is None:
        raise DamagedEntry("is not what was written", path)
    # Checksum of the bytes, not of the values: encoding a large body again takes as long as parsing it.
    body = match["body"]
    if zlib.crc32(body) != int(match["crc"]):
        raise DamagedEntry("does not match its own checksum", path)
    return dict(json.loads(body))
