"""Shards on several disks: where new ones go, and that they are found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import hasten.cache.build as build
import hasten.cache.lists as lists
from hasten.cache.build import get_arena, is_prepared
from hasten.cache.entries import list_entries, prune, verify
from hasten.cases.types import CaseSet
from hasten.config.check import check_run
from hasten.config.schema import CacheConfig, DataConfig, RunConfig
from tests.cache.sets import SPEC, assert_same_cases, write_case_set
from tests.cache.test_lists import SHAPES, prepared, rebuilt

Disks = Callable[..., None]


@pytest.fixture
def six(tmp_path: Path) -> CaseSet:
    return write_case_set(tmp_path / "set", SHAPES, num_channels=2)


@pytest.fixture
def cache(tmp_path: Path) -> CacheConfig:
    folders = tuple(str(tmp_path / name) for name in ("disk1", "disk2"))
    return CacheConfig(dir=str(tmp_path / "cache"), home="file", shard_dirs=folders)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Disks:
    """Sets the free bytes of the disks."""

    def set_free(**sizes: int) -> None:
        def usage(path: Path) -> SimpleNamespace:
            return SimpleNamespace(free=max((size for name, size in sizes.items() if name in str(path)), default=1))

        monkeypatch.setattr(lists, "existing", lambda folder: folder)
        monkeypatch.setattr(lists.os, "access", lambda path, mode: "read_only" not in str(path))
        monkeypatch.setattr(lists.shutil, "disk_usage", usage)

    return set_free


def names(folder: str) -> list[str]:
    where = Path(folder) / "arena"
    return sorted(path.name for path in where.iterdir()) if where.is_dir() else []


def part_of(case_set: CaseSet, *numbers: int) -> CaseSet:
    return replace(case_set, cases=tuple(case_set.cases[number] for number in numbers))


def test_each_shard_goes_where_most_space_is_free(six: CaseSet, cache: CacheConfig, free: Disks) -> None:
    free(disk1=10, disk2=5)
    get_arena(part_of(six, 0, 1), SPEC, cache)
    free(disk1=10, disk2=15)
    get_arena(part_of(six, 0, 1, 2, 3), SPEC, cache)
    free(disk1=0, disk2=0)
    with prepared() as ids:
        arena = get_arena(six, SPEC, cache)
    assert sorted(ids) == ["case4", "case5"]
    assert [len(names(folder)) for folder in (str(cache.dir), *cache.shard_dirs)] == [1, 1, 1]
    assert_same_cases(arena, rebuilt(six, replace(cache, shard_dirs=())))
    with prepared() as ids:
        assert_same_cases(get_arena(six, SPEC, cache), arena)
    assert not ids


def test_a_set_larger_than_a_disk_spreads(
    six: CaseSet, cache: CacheConfig, free: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "SHARD_BYTES", 200)
    real = lists.CaseQuery.shard_folder
    turn = iter([{"disk1": 2}, {"disk2": 2}, {}])

    def shard_folder(query: lists.CaseQuery, missing: list[int]) -> Path:
        free(**next(turn, {}))
        return real(query, missing)

    monkeypatch.setattr(lists.CaseQuery, "shard_folder", shard_folder)
    arena = get_arena(six, SPEC, cache)
    assert [len(names(folder)) for folder in (str(cache.dir), *cache.shard_dirs)] == [1, 1, 1]
    assert_same_cases(arena, rebuilt(six, replace(cache, shard_dirs=())))


def test_a_folder_that_cannot_be_written_is_read(six: CaseSet, tmp_path: Path, free: Disks) -> None:
    """Such as a bucket, mounted read-only, that another machine's cache was copied to."""
    elsewhere = CacheConfig(dir=str(tmp_path / "elsewhere"), home="file")
    get_arena(part_of(six, 0, 1, 2), SPEC, elsewhere)
    shutil.copytree(tmp_path / "elsewhere" / "arena", tmp_path / "read_only" / "arena")
    free(read_only=100)
    here = CacheConfig(dir=str(tmp_path / "here"), home="file", shard_dirs=(str(tmp_path / "read_only"),))
    assert is_prepared(part_of(six, 2, 0), SPEC, here)
    with prepared() as ids:
        arena = get_arena(six, SPEC, here)
    assert sorted(ids) == ["case3", "case4", "case5"]
    assert (len(names(str(here.dir))), len(names(here.shard_dirs[0]))) == (1, 1)
    assert_same_cases(arena, rebuilt(six, elsewhere))


def test_a_stopped_build_goes_on_where_it_began(six: CaseSet, cache: CacheConfig, free: Disks) -> None:
    free(disk2=10)

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get_arena(six, SPEC, cache, tick=stop)
    free(disk1=10)
    with prepared() as ids:
        get_arena(six, SPEC, cache)
    assert len(ids) == 4
    assert [len(names(folder)) for folder in (str(cache.dir), *cache.shard_dirs)] == [0, 0, 1]


def test_a_disk_at_another_place_is_found_by_the_new_name(six: CaseSet, cache: CacheConfig, free: Disks) -> None:
    free(disk1=10)
    get_arena(six, SPEC, cache)
    Path(cache.shard_dirs[0]).rename(f"{cache.shard_dirs[0]}_moved")
    with prepared() as ids:
        get_arena(six, SPEC, replace(cache, shard_dirs=(f"{cache.shard_dirs[0]}_moved",)))
    assert not ids


def test_prune_leaves_shards_that_another_folder_lists(six: CaseSet, cache: CacheConfig, free: Disks) -> None:
    free(disk1=10)
    get_arena(six, SPEC, cache)
    for folder in (Path(str(cache.dir)), Path(cache.shard_dirs[0])):
        assert not any(wrong for _, wrong in verify(folder))
        assert prune(folder, unused_days=1) == []
    assert sorted(entry.kind for entry in list_entries(Path(cache.shard_dirs[0]))) == ["arena", "set"]
    with prepared() as ids:
        get_arena(six, SPEC, cache)
    assert not ids
    assert len(prune(Path(cache.shard_dirs[0]), max_bytes=0)) == 2
    with prepared() as ids:
        get_arena(six, SPEC, cache)
    assert len(ids) == 6


def test_a_damaged_shard_that_cannot_be_removed_is_named(
    six: CaseSet, cache: CacheConfig, free: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(disk1=10)
    get_arena(six, SPEC, cache)
    [name] = names(cache.shard_dirs[0])
    shard = Path(cache.shard_dirs[0]) / "arena" / name
    (shard / "image.bin").write_bytes(b"")

    def refuse(folder: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(lists, "discard", refuse)
    with pytest.raises(ValueError, match=rf"{name}: a cache .*Read-only file system.*cache.shard_dirs"):
        get_arena(six, SPEC, cache)


def test_places_that_are_no_folders_of_this_machine() -> None:
    run = RunConfig(data=DataConfig(source="x"), cache=CacheConfig(shard_dirs=("s3://bucket/cache", "relative")))
    mistakes = [text for text in check_run(run) if "shard_dirs" in text]
    assert len(mistakes) == 2
    assert "mount the bucket read-only" in mistakes[0]
    assert "absolute" in mistakes[1]
