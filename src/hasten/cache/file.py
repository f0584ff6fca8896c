"""The arena on disk: a folder with three flat files and `arena.json`, published by one rename and checked by checksums."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from hasten.cache.arena import Arena, Tables
from hasten.prepare.geometry_json import geometry_from_dict
from hasten.prepare.types import Geometry

IMAGE, LABEL, POINTS, INDEX = "image.bin", "label.bin", "points.bin", "arena.json"
_DTYPES = {"float16": torch.float16, "float32": torch.float32}

checksum: Callable[..., int] = zlib.crc32
try:
    from isal import isal_zlib

    checksum = isal_zlib.crc32
except ImportError:
    pass


class DamagedArena(Exception):
    """An entry whose bytes are not those that were written. The entry is rebuilt, so users see it as a warning only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseEntry:
    """One case in arena.json."""

    id: str
    shape: tuple[int, int, int]
    num_points: tuple[int, ...]
    """Per foreground class."""
    image_crc: int
    label_crc: int
    geometry: dict
    """As `geometry_to_dict` gives it."""


def open_arena(folder: Path, *, home: str) -> Arena:
    """Open a published entry in the `file` home (mapped, nothing read ahead) or the `ram` home (read and checked).

    Raises FileNotFoundError if there is none, DamagedArena if sizes or checksums do not hold.
    """
    index = _read_index(folder)
    entries = [_entry(row) for row in index["cases"]]
    num_channels, num_classes = int(index["num_channels"]), int(index["num_classes"])
    voxels = np.array([int(np.prod(entry.shape)) for entry in entries], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(voxels)])
    counts = np.array([entry.num_points for entry in entries], dtype=np.int64).reshape(len(entries), num_classes - 1)
    starts = np.concatenate([[0], np.cumsum(counts.ravel())])
    dtype = _DTYPES[index["dtype"]]
    tables = Tables(
        image=_open(folder / IMAGE, dtype, int(offsets[-1]) * num_channels, home),
        label=_open(folder / LABEL, torch.uint8, int(offsets[-1]), home),
        points=_open(folder / POINTS, torch.int32, int(starts[-1]), "ram"),
        offset=torch.from_numpy(offsets[:-1].copy()),
        shape=torch.tensor([entry.shape for entry in entries], dtype=torch.int64),
        point_start=torch.from_numpy(starts[:-1].copy()).view(counts.shape),
        point_count=torch.from_numpy(counts),
    )
    arena = Arena(
        tables=tables,
        ids=tuple(entry.id for entry in entries),
        shapes=tuple(entry.shape for entry in entries),
        offsets=tuple(int(value) for value in offsets[:-1]),
        geometry=tuple(_geometry(entry) for entry in entries),
        num_channels=num_channels,
        num_classes=num_classes,
        home=home,
    )
    if home == "ram":
        verify(arena, entries, folder)
    return arena


def verify(arena: Arena, entries: list[CaseEntry], folder: Path) -> None:
    """Compare every block with its checksum. Raises DamagedArena naming the case."""
    for number, entry in enumerate(entries):
        for key, block, expected in (
            ("image", arena.image(number), entry.image_crc),
            ("label", arena.label(number), entry.label_crc),
        ):
            if checksum(block.contiguous().view(torch.uint8).numpy().reshape(-1).data) != expected:
                raise DamagedArena(f"{folder}: the {key} of case {entry.id} does not match its checksum")


def _read_index(folder: Path) -> dict:
    text = (folder / INDEX).read_bytes()
    try:
        index: dict = json.loads(text)
        body = json.dumps(index["body"], sort_keys=True).encode()
        if zlib.crc32(body) != index["crc"]:
            raise DamagedArena(f"{folder / INDEX}: does not match its own checksum")
        return index["body"]
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedArena(f"{folder / INDEX}: {error}") from error


def write_index(folder: Path, body: dict) -> None:
    """Write arena.json with a checksum over its content."""
    text = json.dumps({"crc": zlib.crc32(json.dumps(body, sort_keys=True).encode()), "body": body})
    (folder / INDEX).write_text(text)


def _entry(row: dict) -> CaseEntry:
    shape, points = tuple(row["shape"]), tuple(row["num_points"])
    return CaseEntry(**{**row, "shape": shape, "num_points": points})


def _geometry(entry: CaseEntry) -> Geometry:
    return geometry_from_dict(entry.geometry)


def _open(path: Path, dtype: torch.dtype, count: int, home: str) -> torch.Tensor:
    size = count * dtype.itemsize
    found = path.stat().st_size
    if found != size:
        raise DamagedArena(f"{path}: {found} bytes, expected {size}")
    if count == 0:
        return torch.zeros(0, dtype=dtype)
    if home == "file":
        return torch.from_file(str(path), shared=False, size=count, dtype=dtype)
    raw = np.fromfile(path, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype)
