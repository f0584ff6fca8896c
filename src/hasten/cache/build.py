"""Fills the arena: threads read and prepare cases and append them to a shard, which one rename publishes.

Cases are found in shards by their key, whatever set they were prepared for, so that a set with a new case needs just
that one prepared. A build that is killed loses the shard that it was at. An arena's home is the device, host memory or
the file, the first that has room for it.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from hasten.cache.arena import Arena, PointSets
from hasten.cache.file import (
    IMAGE,
    INDEX,
    LABEL,
    POINTS,
    SHARDS,
    Selection,
    Shard,
    checksum,
    key_array,
    open_arena,
    read_shard,
    verify_cases,
)
from hasten.cache.key import FORMAT, Files, cache_dir, digest, entry_name, files_of, settings_key
from hasten.cache.publish import DamagedEntry, as_value_error, building, discard, write_checked
from hasten.cases.read import check_num_channels
from hasten.cases.types import Case, CaseSet
from hasten.config.patterns import first_few
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.config.size import parse_size
from hasten.devices import free_bytes, holds_cases, kind_of
from hasten.observe.cores import available_memory
from hasten.prepare.case import load_prepared
from hasten.prepare.foreground import foreground_points
from hasten.prepare.threads import on_threads

log = logging.getLogger(__name__)

SHARD_BYTES = 4 * 2**30
"""Size of image and label after which a shard ends: the most that a killed build loses."""
Tick = Callable[[int, int], None]
"""Called with (cases done, cases in all) after each case that is prepared; those the cache had count as done."""


class CaseQuery(NamedTuple):
    """What is looked for in a cache folder."""

    folder: Path
    """`cache.dir`."""
    case_set: CaseSet
    prepare: PrepareConfig
    max_points: int
    """`cache.max_points`."""
    settings: str
    """`settings_key` of how the cases are prepared."""
    keys: tuple[str, ...]
    """`Files.identities` of the cases."""

    def shard_folder(self, missing: Sequence[int]) -> Path:
        """Folder of the shard to build, which begins with the first of these cases."""
        keys = digest([self.keys[case] for case in missing])
        return self.folder / SHARDS / entry_name(self.case_set.name, f"{self.settings}-{keys}")


class _ShardCase(NamedTuple):
    """One case as it goes into the files."""

    image: np.ndarray
    label: np.ndarray
    points: np.ndarray
    row: dict[str, Sequence[Any]]
    """What arena.json holds of it in flat lists, by the name of the list."""
    geometry: str
    """The geometry as JSON."""


def get_arena(
    case_set: CaseSet,
    prepare: PrepareConfig,
    cache: CacheConfig,
    *,
    device: str = "cpu",
    own: Sequence[str] | None = None,
    tick: Tick | None = None,
    files: Files | None = None,
) -> Arena:
    """The arena of these cases in the home that `cache` names; cases missing from the cache are prepared first.

    own: as in `open_at_home`.
    files: what is known of the cases' files. Cases of a damaged shard are prepared again with a warning. Raises
    ValueError from reading a case, or naming the cache folder where it is full or can't be written; earlier entries
    stay as they are.
    """
    query = _query(case_set, prepare, cache, files)
    damage: DamagedEntry | None = None
    with as_value_error(query.folder / SHARDS):
        for _ in range(3):
            try:
                cases = _complete(query, tick)
                arena = open_at_home(cases, cache, torch.device(device), own)
            except FileNotFoundError:
                log.debug("%s: another process took a shard away", query.folder)
            except DamagedEntry as error:
                damage = error
                if error.path is not None:
                    _remove_damaged(error.path.parent, error)
            else:
                for shard in cases.shards:
                    with suppress(OSError):  # the time of the last use, for `hasten cache prune`
                        os.utime(shard.folder / INDEX)
                return arena
    raise ValueError(
        f"{query.folder / SHARDS}: does not read back as written; check that disk, or set cache.dir to another one"
    ) from damage


def is_prepared(case_set: CaseSet, prepare: PrepareConfig, cache: CacheConfig, files: Files | None = None) -> bool:
    """Whether the cache holds every one of these cases. Raises ValueError for a missing file."""
    return not find_cases(_query(case_set, prepare, cache, files))[1]


def _query(case_set: CaseSet, prepare: PrepareConfig, cache: CacheConfig, files: Files | None) -> CaseQuery:
    if not case_set.cases:
        raise ValueError(f"{case_set.source}: holds no cases; check data.source")
    keys = files_of(case_set.cases, cache, files).identities
    settings = settings_key(case_set, prepare, cache.max_points)
    return CaseQuery(cache_dir(cache), case_set, prepare, cache.max_points, settings, keys)


def _complete(query: CaseQuery, tick: Tick | None) -> Selection:
    """The cases, after those that no shard holds have been prepared."""
    cases, missing = find_cases(query)
    if len(cases.rows) and missing:
        ids = [query.case_set.cases[case].id for case in missing]
        log.info("%d of %d cases are in the cache; prepared now: %s", len(cases.rows), len(query.keys), first_few(ids))
    while missing:
        folder, before = query.shard_folder(missing), len(missing)
        if not (folder / INDEX).exists():
            discard(folder)  # leftovers of a shard that was removed by hand
        with building(folder, (folder / INDEX).exists) as partial_folder:
            if partial_folder is not None:
                _fill(query, missing, partial_folder, tick)
        cases, missing = find_cases(query)
        if len(missing) >= before:
            discard(query.shard_folder(missing))  # for example a renamed one that holds other cases
            raise FileNotFoundError(query.shard_folder(missing))
    return cases


def find_cases(query: CaseQuery) -> tuple[Selection, list[int]]:
    """The cases that shards hold, in the set's order, and the positions of the missing ones.

    Only shards whose name has the same settings are looked into. A damaged one is removed, with a warning.
    """
    shards: list[Shard] = []
    for folder in sorted((query.folder / SHARDS).glob(f"[!.]*-{query.settings}-*")):
        try:
            shard = read_shard(folder)
        except FileNotFoundError:
            continue
        except DamagedEntry as damage:
            _remove_damaged(folder, damage)
        else:
            shards += [shard] if shard.settings == query.settings else []
    keys = key_array("".join(query.keys))
    if not shards:
        return Selection((), np.zeros(0, np.int64)), list(range(len(keys)))
    place, present = _places(shards, keys)
    # Without the shards that hold none of the cases.
    number = np.searchsorted(np.cumsum([len(shard.ids) for shard in shards]), place[present], side="right")
    used = [shards[each] for each in np.unique(number)]
    rows = _places(used, keys[present])[0] if used else place[present]
    return Selection(tuple(used), rows), np.flatnonzero(~present).tolist()


def _places(shards: Sequence[Shard], keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The place of a case that has each key, among those of all shards, and whether there is one."""
    stored = np.concatenate([shard.keys for shard in shards])
    order = np.argsort(stored, kind="stable")
    place = order[np.searchsorted(stored, keys, sorter=order).clip(max=len(stored) - 1)]
    return place, stored[place] == keys


def _remove_damaged(folder: Path, damage: DamagedEntry) -> None:
    log.warning("a cache entry is damaged and is removed, so that its cases are prepared again: %s", damage)
    discard(folder)


def _fill(query: CaseQuery, missing: Sequence[int], folder: Path, tick: Tick | None) -> None:
    """Prepare the first of these cases (positions), as many as a shard takes."""
    case_set = query.case_set
    cases, total = [case_set.cases[case] for case in missing], len(case_set.cases)
    columns: dict[str, list[Any]] = {}
    geometries: dict[str, int] = {}
    constant: list[Path] = []
    points_crc = 0
    with (
        (folder / IMAGE).open("wb") as image,
        (folder / LABEL).open("wb") as label,
        (folder / POINTS).open("wb") as points,
        closing(on_threads(partial(_prepare_case, query), cases, query.prepare.num_threads)) as prepared_cases,
    ):
        for case, prepared in zip(cases, prepared_cases, strict=True):
            if any(map(_is_constant, prepared.image)):
                constant.append(case.image[0])
            for stream, array in ((image, prepared.image), (label, prepared.label), (points, prepared.points)):
                stream.write(array.data)
            points_crc = checksum(prepared.points, points_crc)
            # Equal geometries, as all tiles of a set may have, are written once.
            number = geometries.setdefault(prepared.geometry, len(geometries))
            for name, values in (*prepared.row.items(), ("cases", [case.id]), ("geometry", [number])):
                columns.setdefault(name, []).extend(values)
            done = len(columns["cases"])
            if tick:
                tick(total - len(cases) + done, total)
            if image.tell() + label.tell() >= SHARD_BYTES:
                break
        for stream in (image, label, points):
            stream.flush()
            # The rename that publishes an entry may reach the disk before its content does.
            os.fsync(stream.fileno())
    if constant:
        log.warning(
            "%s: %d cases have a channel of one value, once prepared, from which nothing is learned: %s; check these "
            "files, prepare.intensity and prepare.window",
            case_set.source,
            len(constant),
            first_few(constant),
        )
    prepare = query.prepare
    body = {
        "format": FORMAT,
        "name": case_set.name,
        "source": str(case_set.source),
        "labels": {str(value): name for value, name in case_set.labels.items()},
        "num_channels": len(case_set.channels),
        "num_classes": len(case_set.labels),
        "dtype": prepare.dtype,
        "prepare": asdict(prepare),
        "points_crc": points_crc,
        "settings": query.settings,
        "keys": "".join(query.keys[case] for case in missing[:done]),
        "geometries": [json.loads(text) for text in geometries],
        **columns,
    }
    write_checked(folder / INDEX, body)


def _is_constant(channel: np.ndarray) -> bool:
    flat = channel.reshape(-1)
    return all(bool((part == flat[0]).all()) for part in (flat[::997], flat))  # the first part nearly always decides


def _prepare_case(query: CaseQuery, case: Case) -> _ShardCase:
    """Prepare one case; runs in parallel with other cases. Raises ValueError naming the case or its file."""
    case_set, prepare = query.case_set, query.prepare
    if case.label is None:
        raise ValueError(f"{case_set.source}: case {case.id} has no label to train on; name its label map or remove it")
    try:
        prepared = load_prepared(case, case_set.labels, prepare, ignore=case_set.ignore)
    except OSError as error:
        raise ValueError(f"{case.image[0]}: case {case.id} can't be read ({error}); check its files") from error
    image, label = prepared.image, prepared.label
    check_num_channels(len(image), case, case_set)
    assert label is not None
    assert image.dtype == prepare.dtype
    assert label.dtype == np.uint8
    label_crc = checksum(label)
    # The seed depends on the voxels only, not on the case's position in the set or the path of its files.
    points, num_voxels = foreground_points(label, len(case_set.labels), query.max_points, seed=label_crc)
    row = {
        "shape": label.shape,
        "num_points": [array.size for array in points],
        "num_voxels": num_voxels,
        "checksums": [checksum(image), label_crc],
    }
    together = np.concatenate([np.empty(0, np.int32), *points])
    return _ShardCase(image, label, together, row, json.dumps(asdict(prepared.geometry)))


def open_at_home(
    cases: Selection, config: CacheConfig, device: torch.device, own: Sequence[str] | None = None
) -> Arena:
    """Open prepared cases in the home that `config` names.

    own: ids of the cases that a process uses which trains on a part of them: memory holds no other. Raises ValueError
    where the device is too small for the cases, and the errors of `open_arena`.
    """
    home = config.home
    if home == "device" and not holds_cases(device):
        home = "ram"
        if kind_of(device).accelerator:
            log.warning("cache.home: no batches are made on %s itself; its cases stay in host memory", device)
    if home == "file":
        return open_arena(cases, home=home)
    arena = open_arena(cases, home="file")
    used = range(len(arena.ids)) if own is None else arena.index(tuple(own))
    if home == "auto":
        size = sum(arena.case_bytes[case] for case in used)
        if size <= _device_budget(config, device):
            home = "device"
        else:
            ram = available_memory() // 2 if config.ram == "auto" else parse_size(config.ram)
            home = "ram" if size <= ram else "file"
    if home == "device":
        return _copy_to_device(arena, cases, device, used)
    return open_arena(cases, home="ram", verified=used) if home == "ram" else arena


def _device_budget(config: CacheConfig, device: torch.device) -> int:
    if not holds_cases(device):
        return 0
    return parse_size(config.device) if config.device != "auto" else free_bytes(device) // 2


def _copy_to_device(arena: Arena, cases: Selection, device: torch.device, positions: Sequence[int]) -> Arena:
    """Copy the cases after verifying their checksums. Both go through the page cache and need no further memory."""
    verify_cases(arena, cases, positions)
    voxels = sum(math.prod(arena.shapes[case]) for case in positions)
    try:
        # In one copy, unless the shards also hold other cases or gaps.
        if voxels == arena.store.values["label"].numel() and list(positions) == list(range(len(arena.ids))):
            return arena.to(device, home="device")
        return copy_cases(arena, positions, device)
    except torch.OutOfMemoryError as error:
        size = sum(arena.case_bytes[case] for case in positions)
        raise ValueError(
            f"cache.home: {size / 2**30:.1f} GiB of prepared cases do not fit in what {device} has free; "
            "set cache.home=ram, or cache.device to less"
        ) from error


def copy_cases(arena: Arena, cases: Sequence[int], device: torch.device | str) -> Arena:
    """Copy cases, by position, to a new arena on `device`. Raises torch.OutOfMemoryError."""
    store, sets = arena.store, arena.store.sets
    assert sets is not None
    chosen = torch.tensor(list(cases), dtype=torch.int64)
    shape, counts = store.shape[chosen], sets.num[chosen]
    voxels = shape.prod(1)
    offset = voxels.cumsum(0) - voxels
    first = (counts.flatten().cumsum(0) - counts.flatten()).view_as(counts)
    values = {
        key: torch.empty(int(voxels.sum()) * store.channels[key], dtype=value.dtype, device=device)
        for key, value in store.values.items()
    }
    # In an arena on disk the points of the cases are in any order.
    begins = sets.first[chosen, 0].tolist() if arena.num_classes > 1 else [0] * len(chosen)
    parts = zip(begins, counts.sum(1).tolist(), strict=True)
    points = torch.cat([sets.points[:0], *(sets.points[begin : begin + length] for begin, length in parts)])
    for case, start in zip(cases, offset.tolist(), strict=True):
        for key, whole in (("image", arena.image(case)), ("label", arena.label(case))):
            begin = start * store.channels[key]
            values[key][begin : begin + whole.numel()].copy_(whole.reshape(-1))
    copied = replace(
        store,
        values=values,
        offset=offset.to(device),
        shape=shape.to(device),
        ids=tuple(arena.ids[case] for case in cases),
        sets=PointSets(points, first, counts).to(device),
        per_case={key: value[chosen].to(device) for key, value in store.per_case.items()},
    )
    return replace(
        arena,
        store=copied,
        shapes=tuple(arena.shapes[case] for case in cases),
        offsets=tuple(offset.tolist()),
        geometry=tuple(arena.geometry[case] for case in cases) if arena.geometry else (),
        num_voxels=tuple(arena.num_voxels[case] for case in cases) if arena.num_voxels else (),
        home="ram" if torch.device(device).type == "cpu" else "device",
        pages=None,
    )
