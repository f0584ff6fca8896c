"""Filling the arena: read and prepare cases on threads, append them to files, publish the whole by one rename."""

from __future__ import annotations

import dataclasses
import logging
import os
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
    checksum,
)
from hasten.cache.homes import at_home
from hasten.cache.journal import JOURNAL, note, recover
from hasten.cache.key import arena_key, cache_dir, digest, entry_name
from hasten.cache.publish import discard, explained
from hasten.cache.turns import building
from hasten.cases.listing import first_few
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.observe.env import usable_cores
from hasten.prepare.case import load_prepared
from hasten.prepare.geometry_json import geometry_to_dict
from hasten.prepare.points import foreground_points
from hasten.prepare.threads import one_torch_thread

log = logging.getLogger(__name__)

Tick = Callable[[int, int], None]
"""Called with (cases done, cases in all) after each case."""


class _Work(NamedTuple):
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
    numbers: Sequence[int] | None = None,
    tick: Tick | None = None,
) -> Arena:
    """The arena of these cases in the homes that `cache` asks for: opened if it is in the cache, else filled first.

    first: ids of the cases to keep in the fastest home, as far as they fit; those that are trained on. only: as in
    `at_home`. numbers: where the set is some cases of a larger one, each one's place in that, so that they are prepared
    as there. A damaged entry is rebuilt with a warning. Raises ValueError from reading a case, or naming the cache
    folder where it is full or can't be written; earlier entries stay as they are.
    """
    key = arena_key(case_set, prepare, cache.max_points, hash_content=cache.hash_content)
    if numbers is not None:
        key = digest([key, list(numbers)])
    folder = cache_dir(cache) / "arena" / entry_name(case_set.name, key)
    with explained(folder.parent):
        for _ in range(3):
            if not (folder / INDEX).exists():
                build_arena(case_set, prepare, folder, max_points=cache.max_points, tick=tick, numbers=numbers)
            try:
                arena = at_home(folder, cache, torch.device(device), first, only=only)
                with suppress(OSError):  # the time of the last use, for `hasten cache prune`
                    os.utime(folder / INDEX)
                return arena
            except FileNotFoundError:
                log.debug("%s: another process took the entry away to rebuild it", folder)
            except DamagedEntry as damage:
                log.warning("a cache entry is damaged and is rebuilt: %s", damage)
                discard(folder)
    raise ValueError(f"{folder}: does not read back as written; check that disk, or set cache.dir to another one")


def build_arena(
    case_set: CaseSet,
    prepare: PrepareConfig,
    folder: Path,
    *,
    max_points: int,
    tick: Tick | None = None,
    numbers: Sequence[int] | None = None,
) -> None:
    """Prepare every case and publish the entry as `folder`, or wait for the process that is at it.

    A build that was killed is gone on with. numbers: as in `get_arena`. Errors are those of `get_arena`.
    """
    if not case_set.cases:
        raise ValueError(f"{case_set.source}: holds no cases; check data.source")
    with explained(folder.parent):
        if not (folder / INDEX).exists():
            discard(folder)  # what is left of an entry that was removed by hand
        with building(folder, (folder / INDEX).exists) as partial:
            if partial is None:
                return
            if not (partial / INDEX).exists():
                _fill(case_set, prepare, partial, max_points, tick, numbers or range(len(case_set.cases)))
            for name in {path.name for path in partial.iterdir()} - {IMAGE, LABEL, POINTS, INDEX}:
                (partial / name).unlink()  # the journal, and what a kill left half written


def _fill(
    case_set: CaseSet,
    prepare: PrepareConfig,
    folder: Path,
    max_points: int,
    tick: Tick | None,
    numbers: Sequence[int],
) -> None:
    voxel_bytes = np.dtype(prepare.dtype).itemsize * len(case_set.channels)
    entries = recover(folder, [case.id for case in case_set.cases], voxel_bytes)
    if entries:
        log.info("%s: goes on after %d of %d cases", folder, len(entries), len(case_set.cases))
    points_crc = checksum(np.fromfile(folder / POINTS, np.uint8))
    constant: list[Path] = []
    with (
        (folder / IMAGE).open("ab") as image,
        (folder / LABEL).open("ab") as label,
        (folder / POINTS).open("ab") as points,
        (folder / JOURNAL).open("ab") as journal,
        closing(_prepared(case_set, prepare, max_points, numbers, first=len(entries))) as works,
    ):
        for case, work in zip(case_set.cases[len(entries) :], works, strict=True):
            if any(map(_is_constant, work.image)):
                constant.append(case.image[0])
            for stream, array in ((image, work.image), (label, work.label), (points, work.points)):
                stream.write(array.data)
                stream.flush()
            note(journal, work.entry)
            points_crc = checksum(work.points, points_crc)
            entries.append(work.entry)
            if tick:
                tick(len(entries), len(case_set.cases))
        for stream in (image, label, points):
            _sync(stream)
    if constant:
        log.warning(
            "%s: %d cases have a channel of one value, once prepared, from which nothing is learned: %s; check these "
            "files, prepare.intensity and prepare.window", case_set.source, len(constant), first_few(constant),
        )  # fmt: skip
    body = {
        "name": case_set.name,
        "source": str(case_set.source),
        "labels": {str(value): name for value, name in case_set.labels.items()},
        "num_channels": len(case_set.channels),
        "num_classes": len(case_set.labels),
        "dtype": prepare.dtype,
        "prepare": dataclasses.asdict(prepare),
        "points_crc": points_crc,
        "cases": [dataclasses.asdict(entry) for entry in entries],
    }
    write_checked(folder / INDEX, body)


def _is_constant(channel: np.ndarray) -> bool:
    flat = channel.reshape(-1)
    return all(bool((part == flat[0]).all()) for part in (flat[::997], flat))  # nearly always the first part tells


def _sync(stream: IO[bytes]) -> None:
    # The rename that publishes an entry may reach the disk before its content does.
    stream.flush()
    os.fsync(stream.fileno())


def _prepared(
    case_set: CaseSet, prepare: PrepareConfig, max_points: int, numbers: Sequence[int], *, first: int
) -> Generator[_Work, None, None]:
    """Cases from the `first` on in their order, prepared on threads; at most two per thread are in memory.

    The first that fails ends it.
    """
    threads = prepare.num_threads or usable_cores()
    with one_torch_thread(), ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[_Work]] = deque()
        try:
            for case, number in zip(case_set.cases[first:], numbers[first:], strict=True):
                waiting.append(pool.submit(_work, case, case_set, prepare, max_points, number))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _work(case: Case, case_set: CaseSet, prepare: PrepareConfig, max_points: int, seed: int) -> _Work:
    """Everything about a case that can be done beside other cases. Raises ValueError naming the case or its file."""
    if case.label is None:
        raise ValueError(f"{case_set.source}: case {case.id} has no label to train on; name its label map or remove it")
    try:
        prepared = load_prepared(case, case_set.labels, prepare)
    except OSError as error:
        raise ValueError(f"{case.image[0]}: case {case.id} can't be read ({error}); check its files") from error
    image, label = prepared.image, prepared.label
    if len(image) != len(case_set.channels):
        raise ValueError(
            f"{case.image[0]}: case {case.id} has {len(image)} channels, but {case_set.source} declares "
            f"{len(case_set.channels)} ({', '.join(case_set.channels)}); give every case the same channels"
        )
    assert label is not None
    assert image.dtype == prepare.dtype
    assert label.dtype == np.uint8
    found, num_voxels = foreground_points(label, len(case_set.labels), max_points, seed)
    depth, height, width = label.shape
    entry = CaseEntry(
        id=prepared.id,
        shape=(depth, height, width),
        num_points=tuple(array.size for array in found),
        num_voxels=num_voxels,
        image_crc=checksum(image),
        label_crc=checksum(label),
        geometry=geometry_to_dict(prepared.geometry),
    )
    return _Work(image, label, np.concatenate([np.empty(0, np.int32), *found]), entry)
