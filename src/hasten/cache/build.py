"""Filling the arena: read and prepare cases on threads, append them to files, publish the whole by one rename."""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
import psutil
import torch

from hasten.cache.arena import Arena
from hasten.cache.file import IMAGE, LABEL, POINTS, CaseEntry, DamagedArena, checksum, open_arena, write_index
from hasten.cache.key import arena_key, cache_dir
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.prepare.case import load_prepared
from hasten.prepare.geometry_json import geometry_to_dict
from hasten.prepare.points import foreground_points
from hasten.prepare.threads import one_torch_thread
from hasten.prepare.types import Prepared

log = logging.getLogger(__name__)

Tick = Callable[[int, int], None]
"""Called with (cases done, cases in all) after each case."""
Work = tuple[Prepared, list[np.ndarray], int, int]


def get_arena(
    case_set: CaseSet, prepare: PrepareConfig, cache: CacheConfig, *, device: str = "cpu", tick: Tick | None = None
) -> Arena:
    """The arena of these cases in the home that `cache.home` asks for: opened if it is in the cache, else filled first.

    A damaged entry is rebuilt with a warning. Errors: ValueError from reading a case, or naming the cache folder when the
    disk is full or not writable; in either case no partial entry is left behind.
    """
    folder = cache_dir(cache) / "arena" / f"{_safe(case_set.name)}-{arena_key(case_set, prepare, cache.max_points)}"
    for attempt in range(2):
        if not (folder / "arena.json").exists():
            build_arena(case_set, prepare, folder, max_points=cache.max_points, tick=tick)
        try:
            return _at_home(folder, cache.home, torch.device(device))
        except DamagedArena as damage:
            if attempt:
                raise
            log.warning("cache entry is damaged and is rebuilt: %s", damage)
            shutil.rmtree(folder)
    raise AssertionError("unreachable")


def _at_home(folder: Path, home: str, device: torch.device) -> Arena:
    size = sum((folder / name).stat().st_size for name in (IMAGE, LABEL, POINTS))
    if home == "auto":
        home = _choose_home(size, device)
    if home != "device":
        return open_arena(folder, home=home)
    arena = open_arena(folder, home="ram")
    return arena if device.type == "cpu" else arena.to(device, home="device")


def _choose_home(size: int, device: torch.device) -> str:
    """The device if the arena takes at most half of its free memory, else host memory on the same terms, else the file."""
    if device.type == "cuda" and size <= torch.cuda.mem_get_info(device)[0] // 2:
        return "device"
    return "ram" if size <= psutil.virtual_memory().available // 2 else "file"


def build_arena(
    case_set: CaseSet, prepare: PrepareConfig, folder: Path, *, max_points: int, tick: Tick | None = None
) -> None:
    """Prepare every case and publish the entry as `folder`. Another process that publishes first wins; both are the same."""
    temporary = Path()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        _fill(case_set, prepare, temporary, max_points, tick)
        _publish(temporary, folder)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ValueError(
                f"{folder.parent}: the disk is full while caching; free some space or set cache.dir (or $HASTEN_CACHE) to "
                "a folder on a larger disk. Nothing else in the cache was touched."
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            raise ValueError(f"{folder.parent}: cannot write the cache; set cache.dir (or $HASTEN_CACHE)") from error
        raise
    finally:
        if temporary.name:
            shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if not (folder / "arena.json").exists():
            raise
    _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _fill(case_set: CaseSet, prepare: PrepareConfig, folder: Path, max_points: int, tick: Tick | None) -> None:
    num_classes = len(case_set.labels)
    entries: list[CaseEntry] = []
    with (
        (folder / IMAGE).open("wb") as image,
        (folder / LABEL).open("wb") as label,
        (folder / POINTS).open("wb") as points,
    ):
        for done, work in enumerate(_prepared(case_set, prepare, num_classes, max_points), start=1):
            entries.append(_append(work, image, label, points))
            if tick:
                tick(done, len(case_set.cases))
        for stream in (image, label, points):
            stream.flush()
            os.fsync(stream.fileno())
    body = {
        "name": case_set.name,
        "source": str(case_set.source),
        "labels": {str(value): name for value, name in case_set.labels.items()},
        "num_channels": len(case_set.channels),
        "num_classes": num_classes,
        "dtype": prepare.dtype,
        "prepare": dataclasses.asdict(prepare),
        "cases": [dataclasses.asdict(entry) for entry in entries],
    }
    write_index(folder, body)
    _sync(folder / "arena.json")


def _append(work: Work, image: IO[bytes], label: IO[bytes], points: IO[bytes]) -> CaseEntry:
    prepared, found, image_crc, label_crc = work
    assert prepared.label is not None
    image.write(prepared.image.data)
    label.write(prepared.label.data)
    for array in found:
        points.write(array.astype(np.int32, copy=False).data)
    depth, height, width = prepared.label.shape
    return CaseEntry(
        id=prepared.id,
        shape=(depth, height, width),
        num_points=tuple(array.size for array in found),
        image_crc=image_crc,
        label_crc=label_crc,
        geometry=geometry_to_dict(prepared.geometry),
    )


def _prepared(case_set: CaseSet, prepare: PrepareConfig, num_classes: int, max_points: int) -> Iterator[Work]:
    """Cases in their order, prepared on threads; at most two per thread wait in memory."""
    threads = prepare.num_threads or len(os.sched_getaffinity(0))

    def work(number: int) -> Work:
        prepared = load_prepared(case_set.cases[number], case_set.labels, prepare)
        assert prepared.label is not None
        found = foreground_points(prepared.label, num_classes, max_points, seed=number)
        image_crc = checksum(prepared.image.reshape(-1).view(np.uint8).data)
        return prepared, found, image_crc, checksum(prepared.label.reshape(-1).data)

    with one_torch_thread(), ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Work]] = deque()
        numbers = iter(range(len(case_set.cases)))
        try:
            for number in numbers:
                waiting.append(pool.submit(work, number))
                if len(waiting) >= 2 * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:40]
