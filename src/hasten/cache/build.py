"""Fills the arena: threads read and prepare cases and append them to a shard, which one rename publishes."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import zlib
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import torch

from hasten.cache.arena import Arena
from hasten.cache.checked import DamagedEntry, write_checked
from hasten.cache.file import (
    IMAGE,
    INDEX,
    LABEL,
    POINTS,
    CaseEntry,
    Selection,
    checksum,
    entry_from_dict,
    index_of,
)
from hasten.cache.homes import open_at_home
from hasten.cache.key import Files, cache_dir, files_of, settings_key
from hasten.cache.lists import SHARDS, CaseQuery, find_cases, read_list, remove_damaged, write_list
from hasten.cache.publish import as_value_error, building, discard
from hasten.cases.read import check_num_channels
from hasten.cases.types import Case, CaseSet
from hasten.config.patterns import first_few
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.observe.cores import usable_cores
from hasten.prepare.case import load_prepared
from hasten.prepare.foreground import foreground_points
from hasten.prepare.threads import one_torch_thread

log = logging.getLogger(__name__)

SHARD_BYTES = 32 * 2**30
"""Size of image and label after which a shard ends."""
JOURNAL = "journal.jsonl"
"""A line for each finished case, so that a killed build is resumed instead of restarted."""
Tick = Callable[[int, int], None]
"""Called with (cases done, cases in all) after each case that is prepared; those the cache had count as done."""


class _ShardCase(NamedTuple):
    """One case as it goes into the files."""

    image: np.ndarray
    label: np.ndarray
    points: np.ndarray
    entry: CaseEntry


def get_arena(
    case_set: CaseSet,
    prepare: PrepareConfig,
    cache: CacheConfig,
    *,
    device: str = "cpu",
    first: Sequence[str] = (),
    only: bool = False,
    tick: Tick | None = None,
    files: Files | None = None,
) -> Arena:
    """The arena of these cases in the homes that `cache` names; cases missing from the cache are prepared first.

    first: ids of the training cases, which are kept in the fastest home as far as they fit. only: as in `open_at_home`.
    files: what is known of the cases' files. Cases of a damaged shard are prepared again with a warning. Raises
    ValueError from reading a case, or naming the cache folder where it is full or can't be written; earlier entries
    stay as they are.
    """
    query = _query(case_set, prepare, cache, files)
    damage: DamagedEntry | None = None
    with as_value_error(query.folder / SHARDS):
        for _ in range(3):
            try:
                cases = None if damage else read_list(query)
                if cases is None:
                    cases = _complete(query, prepare, cache.max_points, tick, damage)
                arena = open_at_home(cases, cache, torch.device(device), first, only=only)
            except FileNotFoundError:
                log.debug("%s: another process took a shard away", query.list_path)
            except DamagedEntry as error:
                damage = error
                if error.path is not None:
                    remove_damaged(error.path.parent, error)
            else:
                for path in (query.list_path, *(shard.folder / INDEX for shard in cases.shards)):
                    with suppress(OSError):  # the time of the last use, for `hasten cache prune`
                        os.utime(path)
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
    return CaseQuery(cache_dir(cache), case_set, settings_key(case_set, prepare, cache.max_points), keys)


def _complete(
    query: CaseQuery, prepare: PrepareConfig, max_points: int, tick: Tick | None, damage: DamagedEntry | None
) -> Selection:
    """Prepare the cases that no shard holds, and write the list of all. damage: why the list can't be used."""
    cases, missing = find_cases(query)
    ids = [query.case_set.cases[case].id for case in missing]
    if damage:
        log.warning("a cache entry is damaged; cases prepared again: %s; %s", first_few(ids) or "none", damage)
    elif len(cases.rows) and missing:
        log.info("%d of %d cases are in the cache; prepared now: %s", len(cases.rows), len(query.keys), first_few(ids))
    while missing:
        build_shard(query, missing, prepare, max_points=max_points, tick=tick)
        before = len(missing)
        cases, missing = find_cases(query)
        if len(missing) >= before:
            discard(query.shard_folder(missing))  # for example a renamed one that holds other cases
            raise FileNotFoundError(query.shard_folder(missing))
    write_list(query, cases)
    return cases


def build_shard(
    query: CaseQuery,
    missing: Sequence[int],
    prepare: PrepareConfig,
    *,
    max_points: int,
    tick: Tick | None = None,
) -> None:
    """Prepare the first of these cases (positions), as many as a shard takes, and publish it.

    Waits for a process that builds the same shard. Resumes a build that was killed. Errors are those of `get_arena`.
    """
    folder = query.shard_folder(missing)
    if not (folder / INDEX).exists():
        discard(folder)  # leftovers of a shard that was removed by hand
    with building(folder, (folder / INDEX).exists) as partial:
        if partial is None:
            return
        if not (partial / INDEX).exists():
            _fill(query, missing, prepare, partial, max_points, tick)
        for name in {path.name for path in partial.iterdir()} - {IMAGE, LABEL, POINTS, INDEX}:
            (partial / name).unlink()  # the journal, and what a kill left half written


def _fill(
    query: CaseQuery,
    missing: Sequence[int],
    prepare: PrepareConfig,
    folder: Path,
    max_points: int,
    tick: Tick | None,
) -> None:
    case_set = query.case_set
    cases, total = [case_set.cases[case] for case in missing], len(case_set.cases)
    voxel_bytes = np.dtype(prepare.dtype).itemsize * len(case_set.channels)
    entries = recover_entries(folder, [case.id for case in cases], voxel_bytes)
    if entries:
        log.info("%s: resumes after %d of %d cases", folder, len(entries), len(cases))
    points_crc = checksum(np.fromfile(folder / POINTS, np.uint8))
    constant: list[Path] = []
    with (
        (folder / IMAGE).open("ab") as image,
        (folder / LABEL).open("ab") as label,
        (folder / POINTS).open("ab") as points,
        (folder / JOURNAL).open("ab") as journal,
        closing(_prepare_cases(cases[len(entries) :], case_set, prepare, max_points)) as prepared_cases,
    ):
        for case, prepared in zip(cases[len(entries) :], prepared_cases, strict=True):
            if any(map(_is_constant, prepared.image)):
                constant.append(case.image[0])
            for stream, array in ((image, prepared.image), (label, prepared.label), (points, prepared.points)):
                stream.write(array.data)
                stream.flush()
            append_entry(journal, prepared.entry)
            points_crc = checksum(prepared.points, points_crc)
            entries.append(prepared.entry)
            if tick:
                tick(total - len(cases) + len(entries), total)
            if image.tell() + label.tell() >= SHARD_BYTES:
                break
        for stream in (image, label, points):
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
    body = {
        "name": case_set.name,
        "source": str(case_set.source),
        "labels": {str(value): name for value, name in case_set.labels.items()},
        "num_channels": len(case_set.channels),
        "num_classes": len(case_set.labels),
        "dtype": prepare.dtype,
        "prepare": dataclasses.asdict(prepare),
        "points_crc": points_crc,
        "settings": query.settings,
        **index_of(entries, [query.keys[case] for case in missing[: len(entries)]]),
    }
    write_checked(folder / INDEX, body)


def _is_constant(channel: np.ndarray) -> bool:
    flat = channel.reshape(-1)
    return all(bool((part == flat[0]).all()) for part in (flat[::997], flat))  # the first part nearly always decides


def _prepare_cases(
    cases: Sequence[Case], case_set: CaseSet, prepare: PrepareConfig, max_points: int
) -> Generator[_ShardCase, None, None]:
    """Some cases of a set in their order, prepared on threads; at most two per thread are in memory.

    The first that fails ends it.
    """
    threads = prepare.num_threads or usable_cores()
    with one_torch_thread(), ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_ShardCase]] = deque()
        try:
            for case in cases:
                waiting.append(pool.submit(_prepare_case, case, case_set, prepare, max_points))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _prepare_case(case: Case, case_set: CaseSet, prepare: PrepareConfig, max_points: int) -> _ShardCase:
    """Prepare one case; runs in parallel with other cases. Raises ValueError naming the case or its file."""
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
    points, num_voxels = foreground_points(label, len(case_set.labels), max_points, seed=label_crc)
    depth, height, width = label.shape
    entry = CaseEntry(
        id=prepared.id,
        shape=(depth, height, width),
        num_points=tuple(array.size for array in points),
        num_voxels=num_voxels,
        image_crc=checksum(image),
        label_crc=label_crc,
        geometry=dataclasses.asdict(prepared.geometry),
    )
    return _ShardCase(image, label, np.concatenate([np.empty(0, np.int32), *points]), entry)


def append_entry(journal: IO[bytes], entry: CaseEntry) -> None:
    """Append the entry of a case whose bytes are written. After a kill, a part of a line is ignored when read."""
    text = json.dumps(dataclasses.asdict(entry)).encode()
    journal.write(b"%08x %s\n" % (zlib.crc32(text), text))
    journal.flush()


def recover_entries(folder: Path, ids: Sequence[str], voxel_bytes: int) -> list[CaseEntry]:
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
        points = sum(entry.num_points) * 4
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
