"""Records of local copies of remote files, stored next to them."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from secrets import token_hex

from hasten.cases.transport import Stat
from hasten.files import hash_file, replacing

log = logging.getLogger(__name__)


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
