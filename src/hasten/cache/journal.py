"""The journal of a build, one line per finished case, so that a killed build is resumed instead of restarted."""

from __future__ import annotations

import dataclasses
import json
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from hasten.cache.file import IMAGE, LABEL, POINTS, CaseEntry, checksum, entry_from_dict

JOURNAL = "journal.jsonl"
_POINT_BYTES = 4


def note(journal: IO[bytes], entry: CaseEntry) -> None:
    """Add a case whose bytes are in the files. A kill leaves a whole line or none that reads."""
    text = json.dumps(dataclasses.asdict(entry)).encode()
    journal.write(b"%08x %s\n" % (zlib.crc32(text), text))
    journal.flush()


def recover(folder: Path, ids: Sequence[str], voxel_bytes: int) -> list[CaseEntry]:
    """The first cases that an earlier build finished in `folder`, each compared with its checksums.

    ids: of all cases in their order. voxel_bytes: of the image, channels together. The three files and the journal are
    cut to end with the last of these cases; they are created if missing.
    """
    sizes = dict.fromkeys((IMAGE, LABEL, POINTS), 0)
    entries: list[CaseEntry] = []
    valid_bytes = 0
    for name in (*sizes, JOURNAL):
        (folder / name).touch()
    for line in (folder / JOURNAL).read_bytes().splitlines(keepends=True):
        entry = _parsed(line)
        if entry is None or len(entries) == len(ids) or entry.id != ids[len(entries)]:
            break
        voxels = math.prod(entry.shape)
        image, label = voxels * voxel_bytes, voxels
        points = sum(entry.num_points) * _POINT_BYTES
        sound = (
            _matches(folder / IMAGE, sizes[IMAGE], image, entry.image_crc)
            and _matches(folder / LABEL, sizes[LABEL], label, entry.label_crc)
            and (folder / POINTS).stat().st_size >= sizes[POINTS] + points
        )
        if not sound:
            break
        entries.append(entry)
        valid_bytes += len(line)
        for name, size in ((IMAGE, image), (LABEL, label), (POINTS, points)):
            sizes[name] += size
    for name, size in (*sizes.items(), (JOURNAL, valid_bytes)):
        with (folder / name).open("r+b") as file:
            file.truncate(size)
    return entries


def _parsed(line: bytes) -> CaseEntry | None:
    head, _, text = line.rstrip(b"\n").partition(b" ")
    try:
        if not line.endswith(b"\n") or head != b"%08x" % zlib.crc32(text):
            return None
        return entry_from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError):
        return None


def _matches(path: Path, start: int, size: int, crc: int) -> bool:
    data = np.fromfile(path, np.uint8, size, offset=start)
    return data.size == size and checksum(data) == crc
