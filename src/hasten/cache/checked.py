"""JSON files with a checksum, written atomically: a reader sees the old file or the new one."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

from hasten.cache.publish import temporary_for
from hasten.files import replacing

_WHOLE = re.compile(rb'\{"crc": (?P<crc>0|[1-9][0-9]{0,9}), "body": (?P<body>\{.*\})\}\n')


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
