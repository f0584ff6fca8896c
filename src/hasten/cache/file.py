"""The arena on disk: a folder with three flat files and `arena.json`, which says what lies where and every checksum.

What is checked when: sizes, `arena.json` and `points.bin` at every opening; the image and label of every case when they
are to be kept in memory (the `ram` home) and by `verify_entry`. The `file` home reads nothing ahead, so a byte that
changes on the disk under it is found by `verify_entry` only.
"""

from __future__ import annotations

import logging
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from hasten.cache.arena import Arena, Tables
from hasten.cache.checked import DamagedEntry, read_checked
from hasten.cache.libc import lock_pages
from hasten.cache.pages import Pages
from hasten.prepare.geometry_json import geometry_from_dict

log = logging.getLogger(__name__)

IMAGE, LABEL, POINTS, INDEX = "image.bin", "label.bin", "points.bin", "arena.json"
_DTYPES = {"float16": torch.float16, "float32": torch.float32}

checksum: Callable[..., int] = zlib.crc32
"""CRC-32 of anything with contiguous bytes. The one of isal gives the same number several times faster."""
try:
    from isal import isal_zlib

    checksum = isal_zlib.crc32
except ImportError:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseEntry:
    """One case in arena.json."""

    id: str
    shape: tuple[int, int, int]
    num_points: tuple[int, ...]
    """Per foreground class."""
    num_voxels: tuple[int, ...]
    """The same, of which points are remembered of some."""
    image_crc: int
    label_crc: int
    geometry: dict
    """As `geometry_to_dict` gives it."""


def open_arena(folder: Path, *, home: str, held: Sequence[int] | None = None, verified: Sequence[int] = ()) -> Arena:
    """Open a published entry: mapped, so that all processes of a machine share one copy of it.

    home: `file` reads nothing ahead; `ram` compares with the checksums, which reads everything, and keeps it in memory
    where the system lets this process. held: do that for these cases (positions) only; the others are read ahead of
    use. verified: cases to compare with their checksums besides, which are about to be copied elsewhere. Tensors are
    read-only: writing to one ends the process. Raises FileNotFoundError if there is no entry, DamagedEntry if a size or
    checksum does not hold.
    """
    arena, entries = _open_entry(folder, home)
    everything = range(len(entries))
    kept = [] if home == "file" else list(everything if held is None else held)
    _verify(arena, entries, folder, sorted({*kept, *verified}))
    if not all(_keep(arena, case) for case in kept):
        log.info(
            "%s: can't be locked in memory (ulimit -l); the system may drop pages of it and read them again", folder
        )
    left = sorted(set(everything) - {*kept, *verified})
    if not left:
        return arena
    pages = Pages(
        folder / IMAGE, folder / LABEL, left, shapes=arena.shapes, offsets=arena.offsets,
        voxel_bytes=arena.tables.image.element_size(), num_channels=arena.num_channels,
    )  # fmt: skip
    return replace(arena, pages=pages)


def _keep(arena: Arena, case: int) -> bool:
    flat = (arena.image(case), arena.label(case))
    return all(lock_pages(each.data_ptr(), each.numel() * each.element_size()) for each in flat)


def verify_entry(folder: Path) -> int:
    """Compare every byte of an entry with its checksum and return the number of cases.

    Needs next to no memory. Raises FileNotFoundError if there is no entry, DamagedEntry naming the file or case.
    """
    arena, entries = _open_entry(folder, "file")
    _verify(arena, entries, folder, range(len(entries)))
    return len(entries)


def entry_bytes(folder: Path) -> int:
    """Bytes an entry takes in memory. Raises FileNotFoundError if there is none, DamagedEntry if a file is gone."""
    if not (folder / INDEX).exists():
        raise FileNotFoundError(folder)
    return sum(_size(folder / name) for name in (IMAGE, LABEL, POINTS))


def _open_entry(folder: Path, home: str) -> tuple[Arena, list[CaseEntry]]:
    index = read_checked(folder / INDEX)
    entries = [entry_from_dict(row) for row in index["cases"]]
    num_channels, num_classes = int(index["num_channels"]), int(index["num_classes"])
    voxels = [math.prod(entry.shape) for entry in entries]
    offsets = np.concatenate([[0], np.cumsum(voxels, dtype=np.int64)])
    counts = np.array([entry.num_points for entry in entries], dtype=np.int64).reshape(len(entries), num_classes - 1)
    starts = np.concatenate([[0], np.cumsum(counts.ravel(), dtype=np.int64)])
    points = _open(folder / POINTS, torch.int32, int(starts[-1]))
    if checksum(points.numpy()) != index["points_crc"]:
        raise DamagedEntry(f"{folder / POINTS}: does not match its checksum")
    tables = Tables(
        image=_open(folder / IMAGE, _DTYPES[index["dtype"]], int(offsets[-1]) * num_channels),
        label=_open(folder / LABEL, torch.uint8, int(offsets[-1])),
        points=points,
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
        geometry=tuple(geometry_from_dict(entry.geometry) for entry in entries),
        num_channels=num_channels,
        num_classes=num_classes,
        num_voxels=tuple(entry.num_voxels for entry in entries),
        home=home,
        files=(folder / IMAGE, folder / LABEL),
    )
    return arena, entries


def _verify(arena: Arena, entries: list[CaseEntry], folder: Path, cases: Iterable[int]) -> None:
    for number in cases:
        entry = entries[number]
        if checksum(arena.image(number).numpy()) != entry.image_crc:
            raise DamagedEntry(f"{folder / IMAGE}: case {entry.id} does not match its checksum")
        if checksum(arena.label(number).numpy()) != entry.label_crc:
            raise DamagedEntry(f"{folder / LABEL}: case {entry.id} does not match its checksum")


def entry_from_dict(row: dict) -> CaseEntry:
    """The inverse of `dataclasses.asdict`, for what JSON makes of it."""
    return CaseEntry(**{**row, **{name: tuple(row[name]) for name in ("shape", "num_points", "num_voxels")}})


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError as error:
        raise DamagedEntry(f"{path}: is missing") from error


def _open(path: Path, dtype: torch.dtype, count: int) -> torch.Tensor:
    size, found = count * dtype.itemsize, _size(path)
    if found != size:
        raise DamagedEntry(f"{path}: {found} bytes, expected {size}")
    if count == 0:
        return torch.zeros(0, dtype=dtype)
    # Not torch.from_file: its mapping is writable, so the kernel refuses one that is larger than memory and swap.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(np.memmap(path, dtype=np.uint8, mode="r")).view(dtype)
