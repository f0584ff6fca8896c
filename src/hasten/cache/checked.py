"""JSON files with a checksum, written so that a reader sees the old file or the new one and never a part."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

from hasten.cache.publish import temporary_for
from hasten.files import replacing


class DamagedEntry(Exception):
    """A cache entry whose bytes are not those that were written. It is made again, so users only see a warning."""


def write_checked(path: Path, body: dict) -> None:
    """Write `body`, plain JSON values, with its checksum. Keys that are not text become text, as JSON has it."""
    text = json.dumps(body)
    with replacing(path, temporary_for(path)) as file:
        file.write(f'{{"crc": {_crc(json.loads(text))}, "body": {text}}}\n'.encode("ascii"))


def read_checked(path: Path) -> dict:
    """The body that was written. Raises FileNotFoundError, or DamagedEntry for what `write_checked` did not write."""
    text = path.read_bytes()
    try:
        content = json.loads(text)
        body, expected = content["body"], content["crc"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedEntry(f"{path}: is not what was written ({error})") from error
    if not isinstance(body, dict) or _crc(body) != expected:
        raise DamagedEntry(f"{path}: does not match its own checksum")
    return body


def _crc(body: object) -> int:
    # Of what JSON gives back, not of what went in: a number as a key has become text by then.
    return zlib.crc32(json.dumps(body).encode())
