"""Downloads a remote file into the local copy: with retries, resumption and checks, and published atomically."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Literal

from hasten.cases.locate import Remote, local_name, server_of
from hasten.cases.transport import RemoteFilesystems, Stat, TransferError, TransferStopped, chunk_of
from hasten.config.size import size_text
from hasten.config.url import shown
from hasten.files import boot_id, hash_file, replacing, same_file, sync_folder, try_lock

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadLimits:
    """Timeouts, retries and size limits of a download."""

    stall_s: float = 60.0
    """Seconds without a byte that count as a failure."""
    least_bytes: int = 64 << 10
    """Bytes in `stall_s` seconds; fewer count as a failure."""
    waits_s: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    """Pause after each failure; one more attempt than pauses is made."""
    chunk: int = 16 << 20
    """Bytes at most in one piece."""
    largest: int | None = None
    """Size limit of a file in bytes; None is no limit."""
    largest_unsized: int = 16 << 30
    """Size limit, in bytes, of files whose size the server does not report."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """A local copy: `new` from the server, `unchanged`, or `stale`: kept without asking the server."""

    path: Path
    how: Literal["new", "unchanged", "stale"]
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """A fetched file: the size in bytes, the SHA-256 in hexadecimal digits, and the server's validator."""

    url: str
    """Address without login and query."""
    size: int
    sha256: str
    validator: str
    mtime_ns: int
    """Modification time of the local file, so that a changed one is noticed without reading it."""

    def matches(self, stat: Stat) -> bool:
        """Whether the server's file is still the fetched one; False if the server reports too little to know."""
        if stat.size is None and not stat.validator:
            return False
        return stat.size in (None, self.size) and stat.validator == self.validator


class Missing(ValueError):
    """The server reports that there is no such file."""


class Unreachable(ValueError):
    """The server can't be reached, and there is no complete copy."""


def fetch(
    url: str,
    folder: Path,
    *,
    sha256: str | None = None,
    verify: bool = False,
    limits: DownloadLimits | None = None,
    filesystems: RemoteFilesystems | None = None,
) -> Fetched:
    """A complete local copy of `url`, at `folder / local_name(url)`.

    A copy that is complete and, as far as the server reports, unchanged is kept; `verify` compares its hash too, not
    only its size. If the server can't be reached, a complete copy is used with a warning. A copy whose hash is the
    requested `sha256` is used without asking the server.

    Raises ValueError: no such file (Missing), no access, another hash than `sha256`, a file that is too large for the
    disk or for `limits`; a server that fails more often than `limits` allows (Unreachable): a later call resumes
    where this one stopped.
    """
    limits = limits or DownloadLimits()
    filesystems = filesystems or RemoteFilesystems(limits.stall_s)
    target = folder / local_name(url)
    remote = Remote(url=url, path=target, sha256=sha256.lower() if sha256 else None)
    try:
        copy = complete_copy(target, verify=verify)
        if copy is not None and copy.sha256 == remote.sha256:
            return Fetched(path=target, how="unchanged", size=copy.size)
        if copy is not None and remote.sha256 is None and server_of(url) in filesystems.unreachable:
            return Fetched(path=target, how="stale", size=copy.size)
        return _fetch_with_retries(remote, copy, filesystems, limits)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"{target}: the disk is full ({error.strerror}), so {shown(url)} can't be copied; free some space or "
                "set cache.dir (or $HASTEN_CACHE) to a folder on a larger disk. What was written of it is removed."
            ) from error
        raise ValueError(
            f"{target}: can't be written ({error.strerror or error}); set cache.dir (or $HASTEN_CACHE) to a folder "
            "where it can."
        ) from error


def _fetch_with_retries(
    remote: Remote, copy: FileRecord | None, filesystems: RemoteFilesystems, limits: DownloadLimits
) -> Fetched:
    url, attempts = shown(remote.url), len(limits.waits_s) + 1
    for attempt in range(attempts):
        try:
            return _attempt(remote, copy, filesystems, replace(limits, chunk=chunk_of(limits.chunk, attempt)))
        except TransferError as error:
            if error.kind == "missing":
                raise Missing(f"{url}: is not there ({error}); correct the URL or what names it.") from None
            if error.kind == "forbidden":
                raise ValueError(
                    f"{url}: access is refused ({error}); give credentials as the service reads them (for S3: "
                    "AWS_PROFILE or AWS_ACCESS_KEY_ID, or FSSPEC_S3_ANON=true for public data)."
                ) from None
            if error.kind == "permanent":
                raise ValueError(f"{url}: can't be fetched ({error}); check the URL.") from None
            last = error
        if attempt < len(limits.waits_s):
            wait = limits.waits_s[attempt]
            log.info("%s: %s; attempt %d of %d in %g s", url, last, attempt + 2, attempts, wait)
            if filesystems.stop.wait(wait):
                raise TransferStopped
    if copy is not None and remote.sha256 is None:
        if server_of(url) not in filesystems.unreachable:
            filesystems.unreachable.add(server_of(url))
            log.warning("%s: can't be reached (%s); its existing copy is used unchecked: %s", url, last, remote.path)
        return Fetched(path=remote.path, how="stale", size=copy.size)
    raise Unreachable(
        f"{url}: can't be fetched after {attempts} attempts ({last}); check the network and the server, then run "
        "again: the download resumes where it stopped."
    )


def _attempt(
    remote: Remote, copy: FileRecord | None, filesystems: RemoteFilesystems, limits: DownloadLimits
) -> Fetched:
    """Raises TransferError, TransferStopped, OSError of the local disk, ValueError for a wrong hash."""
    stat = filesystems.stat(remote.url)
    if copy is not None and copy.matches(stat):
        _check_hash(remote, copy.sha256)
        return Fetched(path=remote.path, how="unchanged", size=copy.size)
    _check_size(remote, stat.size or 0, stat, limits)
    remote.path.parent.mkdir(parents=True, exist_ok=True)
    resumable = bool(stat.validator) and stat.size is not None
    with _locked_partial(remote.path, _version(stat), resumable, filesystems) as partial:
        # The previous owner of the lock may have fetched it.
        existing = complete_copy(remote.path)
        if existing is not None and existing.matches(stat):
            _check_hash(remote, existing.sha256)
            return Fetched(path=remote.path, how="unchanged", size=existing.size)
        _check_room(remote, (stat.size or 0) - partial.stat().st_size)
        with partial.open("r+b") as file:
            sha256 = _transfer(remote, stat, filesystems, file, limits, resumable)
            size = file.tell()
            os.fsync(file.fileno())
        if filesystems.stat(remote.url) != stat:
            partial.unlink()
            raise TransferError("transient", "it changed while it was fetched")
        try:
            _check_hash(remote, sha256)
        except ValueError:
            partial.unlink()
            raise
        record = FileRecord(url=shown(remote.url), size=size, sha256=sha256, validator=stat.validator, mtime_ns=0)
        _publish(partial, remote.path, record, existing)
        if existing is not None:
            log.info("%s: had changed, and was downloaded again", record.url)
    return Fetched(path=remote.path, how="new", size=size)


def _check_size(remote: Remote, size: int, stat: Stat, limits: DownloadLimits) -> None:
    caps = (limits.largest, limits.largest_unsized if stat.size is None else None)
    largest = min((cap for cap in caps if cap is not None), default=size)
    if size > largest:
        raise ValueError(
            f"{shown(remote.url)}: has {size_text(size)} or more, and {size_text(largest)} at most are taken; check "
            "the URL, or copy the file here by other means and name the copy."
        )


def _check_room(remote: Remote, size: int) -> None:
    free = shutil.disk_usage(remote.path.parent).free
    if size > free:
        raise ValueError(
            f"{remote.path}: needs {size_text(size)}, but {remote.path.parent} has {size_text(free)} free; free some "
            "space or set cache.dir (or $HASTEN_CACHE) to a folder on a larger disk."
        )


def _transfer(
    remote: Remote, stat: Stat, filesystems: RemoteFilesystems, file: BinaryIO, limits: DownloadLimits, resumable: bool
) -> str:
    """Append the missing bytes to `file` and return its SHA-256. Leaves the position at its end."""
    digest = hashlib.sha256()
    if not resumable or (stat.size is not None and os.fstat(file.fileno()).st_size > stat.size):
        file.truncate(0)
    while block := file.read(1 << 20):
        digest.update(block)
    at = file.tell()
    if at:
        log.info("%s: resumes at byte %d", shown(remote.url), at)
    pieces = filesystems.read(remote.url, at, stat, limits.chunk) if at != stat.size else iter(())
    since, received = time.monotonic(), 0
    for start, data in pieces:
        if start != at:
            assert start == 0
            _empty(file)
            at, digest = 0, hashlib.sha256()
        file.write(data)
        digest.update(data)
        at += len(data)
        if stat.size is not None and at > stat.size:
            _empty(file)
            raise TransferError("transient", f"more than its {stat.size} bytes came")
        _check_size(remote, at, stat, limits)
        received += len(data)
        if at != stat.size and (seconds := time.monotonic() - since) >= limits.stall_s:
            if received < limits.least_bytes:
                raise TransferError("transient", f"only {received} bytes came in {seconds:.3g} s")
            since, received = time.monotonic(), 0
    file.flush()
    if stat.size is not None and at != stat.size:
        raise TransferError("transient", f"it ended after {at} of {stat.size} bytes")
    return digest.hexdigest()


def _empty(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate(0)


def _check_hash(remote: Remote, sha256: str) -> None:
    if remote.sha256 is not None and remote.sha256 != sha256:
        raise ValueError(
            f"{shown(remote.url)}: has the SHA-256 {sha256}, but {remote.sha256} is asked for; correct the hash in the "
            "list, or find out who changed the file."
        )


def _publish(partial: Path, target: Path, record: FileRecord, existing: FileRecord | None) -> None:
    """Turn the partial file into the copy. A copy with the same bytes stays, so that its cache entries stay valid."""
    # The record first: others wait until the partial file is gone, and must then find record and copy.
    # A record next to a file of another size or time is ignored.
    if existing is not None and (existing.size, existing.sha256) == (record.size, record.sha256):
        write_record(target, replace(record, mtime_ns=target.stat().st_mtime_ns))
        partial.unlink()
    else:
        write_record(target, replace(record, mtime_ns=partial.stat().st_mtime_ns))
        partial.replace(target)
    _sweep(target)
    sync_folder(target.parent)


def _sweep(target: Path) -> None:
    """Remove partial files of other versions that nobody is filling."""
    names = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{12}}\.partial")
    for path in target.parent.iterdir():
        if names.fullmatch(path.name):
            with suppress(OSError):
                handle = try_lock(path, os.O_RDWR)
                if handle is not None:
                    path.unlink()
                    os.close(handle)


def _version(stat: Stat) -> str:
    """The version in a partial file's name, so that only parts of the same version are joined.

    The boot id is part of it: after a crash, a partial file may have holes.
    """
    boot = boot_id() or token_hex(8)
    return hashlib.sha256(f"{stat.size} {stat.validator} {boot}".encode()).hexdigest()[:12]


@contextmanager
def _locked_partial(target: Path, version: str, resumable: bool, filesystems: RemoteFilesystems) -> Iterator[Path]:
    """The locked partial file. It stays if the next attempt can resume it, unless the disk failed."""
    partial = target.with_name(f".{target.name}.{version}.partial")
    try:
        handle = _open_locked(partial, filesystems)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
            raise
        # A file system without locks: each process downloads to a separate file, and the last one wins.
        partial.unlink(missing_ok=True)
        partial = target.with_name(f".{target.name}.{token_hex(6)}.partial")
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        resumable = False
    try:
        yield partial
    except OSError:
        resumable = False
        raise
    finally:
        # Only while the path still refers to the locked file: after a rename it may belong to another process.
        if same_file(handle, partial) and not (resumable and os.fstat(handle).st_size):
            partial.unlink()
        os.close(handle)


def _open_locked(partial: Path, filesystems: RemoteFilesystems) -> int:
    logged = False
    while (handle := try_lock(partial, os.O_RDWR | os.O_CREAT)) is None:
        if not logged:
            log.info("%s: another process fetches it; waiting", partial)
        logged = True
        if filesystems.stop.wait(0.1):
            raise TransferStopped
    return handle


def record_path(target: Path) -> Path:
    return target.with_name(f".{target.name}.fetched")


def write_record(target: Path, record: FileRecord) -> None:
    """Write the record of a copy; a reader sees the old one or the new one. Raises OSError."""
    path = record_path(target)
    with replacing(path, path.with_name(f"{path.name}.{token_hex(4)}.partial")) as file:
        file.write(json.dumps(asdict(record)).encode("ascii"))


def _read_record(target: Path) -> FileRecord | None:
    """The record of a copy; None if it is missing, or with a warning if it is damaged."""
    path = record_path(target)
    try:
        content = json.loads(path.read_bytes())
        record = FileRecord(**content.get("body", content))  # earlier versions wrote it as a "body"
        if all(isinstance(getattr(record, each.name), str if each.type == "str" else int) for each in fields(record)):
            return record
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        pass
    log.warning("%s: is damaged; what it describes is downloaded again", path)
    return None


def complete_copy(target: Path, *, verify: bool = False) -> FileRecord | None:
    """The record of a complete local copy, or None; a damaged copy with a warning.

    The size is compared always, the hash with `verify` or where the file was touched since.
    """
    try:
        status = target.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    record = _read_record(target)
    if record is None:
        return None
    damage = ""
    if status.st_size != record.size:
        damage = f"has {status.st_size} bytes, not {record.size}"
    elif (verify or status.st_mtime_ns != record.mtime_ns) and hash_file(target) != record.sha256:
        damage = "is not what was fetched (its SHA-256 differs)"
    if damage:
        log.warning("%s: %s; it is downloaded again", target, damage)
        record_path(target).unlink(missing_ok=True)
        return None
    if status.st_mtime_ns != record.mtime_ns:
        with suppress(OSError):  # a copy that only others can write is as valid
            write_record(target, replace(record, mtime_ns=status.st_mtime_ns))
    return record
