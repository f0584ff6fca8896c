"""Filling: threads, progress, and failures that leave nothing behind."""

from __future__ import annotations

import errno
import io
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hasten.cache.build as build
from hasten.cache.build import get_arena
from hasten.cases.nifti import read_nifti, write_nifti
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import CacheConfig
from hasten.prepare.types import PreparedCase
from tests.cache.sets import SPEC, assert_holds, write_case_set

Load = Callable[..., PreparedCase]


@pytest.fixture(autouse=True)
def _leaves_threads_alone() -> Iterator[None]:
    torch_threads, before = torch.get_num_threads(), set(threading.enumerate())
    yield
    assert torch.get_num_threads() == torch_threads
    # A thread of an earlier test may have ended meanwhile, so they aren't counted.
    assert set(threading.enumerate()) <= before


def left_in(cache: CacheConfig) -> list[str]:
    folder = Path(str(cache.dir)) / "arena"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def many(folder: Path, **options: Any) -> CaseSet:
    return write_case_set(folder / "many", [(2, 3, 4)] * 12, **options)


def test_every_case_ticks_once(small: CaseSet, cache: CacheConfig) -> None:
    ticks: list[tuple[int, int]] = []
    get_arena(small, SPEC, cache, tick=lambda done, total: ticks.append((done, total)))
    assert ticks == [(1, 4), (2, 4), (3, 4), (4, 4)]
    get_arena(small, SPEC, cache, tick=lambda done, total: ticks.append((done, total)))
    assert len(ticks) == 4


def test_a_bad_case_in_the_middle_leaves_nothing(tmp_path: Path, cache: CacheConfig) -> None:
    case_set = many(tmp_path, nan_in=5)
    with pytest.raises(ValueError, match=r"case5_0\.nii.*NaN.*replace"):
        get_arena(case_set, SPEC, cache)
    assert left_in(cache) == []
    mended = replace(case_set, cases=case_set.cases[:5])
    assert_holds(get_arena(mended, SPEC, cache), mended, SPEC, cache.max_points)


def test_what_is_wrong_with_a_case_is_said(small: CaseSet, cache: CacheConfig) -> None:
    first = small.cases[0]
    for cases, message in (
        ((), "no cases"),
        ((replace(first, label=None),), "case0 has no label"),
        ((first, replace(first, id="odd", image=first.image[:1])), "odd has 1 channels.*2 .channel0, channel1"),
        ((replace(first, label=first.image[0].with_name("gone.nii")),), "gone.nii.*case0"),
    ):
        with pytest.raises(ValueError, match=message):
            get_arena(replace(small, cases=cases), SPEC, cache)
        assert left_in(cache) == []


def test_cases_of_one_value_are_pointed_out(
    small: CaseSet, cache: CacheConfig, caplog: pytest.LogCaptureFixture
) -> None:
    path = small.cases[1].image[1]
    volume = read_nifti(path)
    write_nifti(path, np.full_like(volume.array[0], 7), volume.affine)
    get_arena(small, SPEC, cache)
    (record,) = (each for each in caplog.records if "channel of one value" in each.getMessage())
    assert re.search(r": 1 cases have .*case1_0\.nii;", record.getMessage())


class FullDisk(io.BufferedWriter):
    """Takes 100 bytes."""

    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


@pytest.mark.parametrize("name", ["image.bin", "label.bin", "points.bin"])
def test_a_full_disk_leaves_nothing(
    small: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = Path.open
    met = []

    def opened(path: Path, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if path.name == name and mode == "wb":
            met.append(path)
            return FullDisk(io.FileIO(path, "w"))
        return real(path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(ValueError, match=r"arena: the disk is full.*cache\.dir"):
        get_arena(small, SPEC, replace(cache, max_points=100))
    assert len(met) == 1
    assert left_in(cache) == []
    monkeypatch.undo()
    assert_holds(get_arena(small, SPEC, cache), small, SPEC, cache.max_points)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_cache_folder_that_is_not_writable_is_refused(
    small: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refused(path: Path, *_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(ValueError, match=rf"arena: .*{os.strerror(code)}.*HASTEN_CACHE"):
        get_arena(small, SPEC, cache)


@pytest.mark.parametrize("where", ["tick", "thread"])
def test_an_interrupt_ends_the_threads_and_leaves_nothing(
    tmp_path: Path, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    real: Load = build.load_prepared
    begun: list[str] = []

    def tick(done: int, total: int) -> None:
        if where == "tick" and done == 3:
            raise KeyboardInterrupt

    def load(case: Case, *args: Any, **options: Any) -> PreparedCase:
        begun.append(case.id)
        if where == "thread" and case.id == "case3":
            raise KeyboardInterrupt
        return real(case, *args, **options)

    monkeypatch.setattr(build, "load_prepared", load)
    cases = many(tmp_path)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt) as interrupt:
        get_arena(cases, SPEC, cache, tick=tick)
    # The traceback still holds what was running, as it would in a debugger: it has ended nevertheless.
    assert interrupt.tb
    assert len(begun) < 12
    assert set(threading.enumerate()) <= before
    assert left_in(cache) == []
    monkeypatch.setattr(build, "load_prepared", real)
    assert len(get_arena(cases, SPEC, cache).ids) == 12


def test_an_entry_can_be_shared(small: CaseSet, cache: CacheConfig) -> None:
    mask = os.umask(0o022)
    try:
        get_arena(small, SPEC, cache)
    finally:
        os.umask(mask)
    (name,) = left_in(cache)
    folder = Path(str(cache.dir)) / "arena" / name
    assert folder.stat().st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o777 == 0o644 for path in folder.iterdir())
