"""A shard on disk: a folder with the flat files of some prepared cases and `arena.json`, which records offsets and
every checksum. The cases of an arena lie in one shard or in several.

`arena.json` has a flat list per property of the cases, not an object per case: 20 000 of those take seconds to open.

What is checked when: sizes, `arena.json` and `points.bin` at every opening; the image and label of every case when they
are to be kept in memory (the `ram` home). The `file` home reads nothing ahead, so that it does not notice a byte that
changes on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from mmap import PAGESIZE
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from isal import isal_zlib

from hasten.cache.arena import Arena, Pages, PointSets, Store
from hasten.cache.key import FORMAT
from hasten.cache.publish import DamagedEntry, read_checked
from hasten.cases.entries import pause_garbage_collection
from hasten.prepare.types import Geometry
from hasten.system import Span, map_files

log = logging.getLogger(__name__)

SHARDS = "arena"
"""Folder of a cache folder."""
IMAGE, LABEL, POINTS, INDEX = "image.bin", "label.bin", "points.bin", "arena.json"
_DTYPES = {"float16": torch.float16, "float32": torch.float32}

checksum: Callable[..., int] = isal_zlib.crc32
"""CRC-32 of anything with contiguous bytes: the number that zlib gives, several times faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """What arena.json records about N cases, a column per property."""

    folder: Path
    settings: str
    """`settings_key` of how they were prepared."""
    keys: np.ndarray
    """(N,) S16: of each case's files, as in `Files.identities`."""
    ids: tuple[str, ...]
    shape: np.ndarray
    """(N, 3) int64."""
    num_points: np.ndarray
    """(N, K) int64, of K foreground classes."""
    num_voxels: np.ndarray
    """(N, K) int64."""
    checksums: np.ndarray
    """(N, 2) int64: of image and label."""
    points_crc: int
    geometry: list[Geometry]
    num_channels: int
    num_classes: int
    dtype: torch.dtype


class Selection(NamedTuple):
    """The cases of a set: a selection of rows from one or more shards, in the set's order."""

    shards: tuple[Shard, ...]
    rows: np.ndarray
    """(N,) int64: place of each case among those of all shards, one shard after another."""


@pause_garbage_collection()
def read_shard(folder: Path) -> Shard:
    """Read arena.json of a published shard and look at the sizes of its files.

    Raises FileNotFoundError if there is no shard, DamagedEntry if a file differs from what was written.
    """
    index = read_checked(folder / INDEX)
    if index.get("format") != FORMAT:
        raise DamagedEntry("was written by another version of Hasten", folder / INDEX)
    count, num_channels, num_classes = len(index["cases"]), int(index["num_channels"]), int(index["num_classes"])
    shape = np.array(index["shape"], dtype=np.int64).reshape(count, 3)
    num_points, num_voxels = (
        np.array(index[name], dtype=np.int64).reshape(count, num_classes - 1) for name in ("num_points", "num_voxels")
    )
    dtype, voxels = _DTYPES[index["dtype"]], int(shape.prod(1).sum())
    for name, expected in (
        (IMAGE, voxels * num_channels * dtype.itemsize),
        (LABEL, voxels),
        (POINTS, 4 * int(num_points.sum())),
    ):
        size = _size(folder / name)
        if size != expected:
            raise DamagedEntry(f"{size} bytes, expected {expected}", folder / name)
    geometries = [Geometry.from_json(each) for each in index["geometries"]]
    return Shard(
        folder=folder,
        settings=index["settings"],
        keys=key_array(index["keys"]),
        ids=tuple(index["cases"]),
        shape=shape,
        num_points=num_points,
        num_voxels=num_voxels,
        checksums=np.array(index["checksums"], dtype=np.int64).reshape(count, 2),
        points_crc=index["points_crc"],
        geometry=[geometries[number] for number in index["geometry"]],
        num_channels=num_channels,
        num_classes=num_classes,
        dtype=dtype,
    )


def key_array(text: str) -> np.ndarray:
    """(N,) S16 of N keys, one after another."""
    return np.frombuffer(text.encode("ascii"), dtype="S16")


def open_arena(cases: Selection, *, home: str, verified: Sequence[int] | None = None) -> Arena:
    """Open cases of published shards: mapped, so that all processes of a machine share one copy of them.

    home: `file` reads nothing ahead; `ram` compares with the checksums, which reads everything into the system's page
    cache. verified: compare only these cases (positions), which are about to be used or copied elsewhere; the others
    are read ahead of use. Tensors are read-only: writing to one ends the process. Raises FileNotFoundError if a shard
    is gone, DamagedEntry if a checksum does not hold.
    """
    arena = _map(cases, home)
    if verified is None:
        verified = range(len(arena.ids)) if home != "file" else ()
    verify_cases(arena, cases, verified)
    lazy = frozenset(range(len(arena.ids))) - {*verified}
    pages = Pages(arena.store.values, arena.store.channels, lazy, arena.shapes, arena.offsets)
    return replace(arena, pages=pages) if lazy else arena


@pause_garbage_collection()
def _map(cases: Selection, home: str) -> Arena:
    """Every case's place in one flat tensor a key, over all shards, and their points."""
    shards, rows = cases
    first = shards[0]
    starts, voxels = _places([int(shard.shape.prod(1).sum()) for shard in shards])
    point_starts, num_points = _places([int(shard.num_points.sum()) for shard in shards])
    points = _mapped(shards, POINTS, torch.int32, 1, point_starts, num_points)
    for shard, start in zip(shards, point_starts, strict=True):
        if checksum(points[start : start + int(shard.num_points.sum())].numpy()) != shard.points_crc:
            raise DamagedEntry("does not match its checksum", shard.folder / POINTS)

    def of_cases(name: str) -> np.ndarray:
        return np.concatenate([getattr(shard, name) for shard in shards])[rows]

    shapes, counts = of_cases("shape"), of_cases("num_points")
    offsets = np.concatenate(
        [start + _offsets(shard.shape.prod(1)) for start, shard in zip(starts, shards, strict=True)]
    )[rows]
    firsts = np.concatenate(
        [
            start + _offsets(shard.num_points.ravel()).reshape(shard.num_points.shape)
            for start, shard in zip(point_starts, shards, strict=True)
        ]
    )[rows]
    order = rows.tolist()
    ids = [name for shard in shards for name in shard.ids]
    geometry = [each for shard in shards for each in shard.geometry]
    store = Store(
        values={
            "image": _mapped(shards, IMAGE, first.dtype, first.num_channels, starts, voxels),
            "label": _mapped(shards, LABEL, torch.uint8, 1, starts, voxels),
        },
        channels={"image": first.num_channels, "label": 1},
        offset=torch.from_numpy(offsets),
        shape=torch.from_numpy(shapes),
        ids=tuple(ids[row] for row in order),
        sets=PointSets(points, torch.from_numpy(firsts), torch.from_numpy(counts)),
    )
    return Arena(
        store=store,
        shapes=_rows(shapes),
        offsets=tuple(offsets.tolist()),
        geometry=tuple(geometry[row] for row in order),
        num_classes=first.num_classes,
        num_voxels=_rows(of_cases("num_voxels")),
        home=home,
    )


def _offsets(sizes: np.ndarray) -> np.ndarray:
    """The sum of what comes before each."""
    return np.cumsum(sizes, dtype=np.int64) - sizes


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Starts of each shard's elements, at a whole number of pages whatever an element's size, and the end of all."""
    starts, end = [], 0
    for size in sizes:
        starts.append(-(-end // PAGESIZE) * PAGESIZE)
        end = starts[-1] + size
    return starts, end


def _mapped(
    shards: Sequence[Shard], name: str, dtype: torch.dtype, channels: int, starts: Sequence[int], end: int
) -> torch.Tensor:
    """One file of every shard as one flat tensor. starts, end: of `_places`."""
    width = channels * dtype.itemsize
    if end == 0:
        return torch.zeros(0, dtype=dtype)
    spans = [
        Span(shard.folder / name, start * width, _size(shard.folder / name))
        for shard, start in zip(shards, starts, strict=True)
    ]
    return torch.frombuffer(map_files(spans, end * width), dtype=dtype)


def _rows(table: np.ndarray) -> tuple[Any, ...]:
    """The rows of a table as tuples, equal ones as one object: a million tiles may share one shape."""
    known: dict[tuple[int, ...], tuple[int, ...]] = {}
    return tuple(known.setdefault(row, row) for row in map(tuple, table.tolist()))


def verify_cases(arena: Arena, cases: Selection, positions: Iterable[int]) -> None:
    """Compare some cases with their checksums. Raises DamagedEntry for one that differs."""
    expected = np.concatenate([shard.checksums for shard in cases.shards])[cases.rows].tolist()
    ends = np.cumsum([len(shard.ids) for shard in cases.shards])
    for case in positions:
        views = (IMAGE, arena.image(case)), (LABEL, arena.label(case))
        for (name, values), crc in zip(views, expected[case], strict=True):
            if checksum(values.numpy()) != crc:
                shard = cases.shards[int(np.searchsorted(ends, cases.rows[case], side="right"))]
                raise DamagedEntry(f"case {arena.ids[case]} does not match its checksum", shard.folder / name)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError as error:
        raise DamagedEntry("is missing", path) from error
