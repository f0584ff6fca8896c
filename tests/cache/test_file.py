"""Damage is found, and repaired where the cases can be prepared again."""

from __future__ import annotations

import logging
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hasten.cache.build as build
import hasten.cache.file as file
from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cache.file import Selection, open_arena, read_shard
from hasten.cache.publish import DamagedEntry
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig
from tests.cache.sets import SPEC, assert_holds, shard_of, write_case_set

FILES = ["image.bin", "label.bin", "points.bin", "arena.json"]


def entry_in(cache: CacheConfig) -> Path:
    assert cache.dir
    (folder,) = (Path(cache.dir) / "arena").iterdir()
    return folder


def flip(path: Path, place: int = -1, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= mask
    path.write_bytes(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    return shard_of(write_case_set(folder / "set", [(2, 3, 4), (3, 3, 3)]), folder / "cache")


def opened(folder: Path, home: str) -> Arena:
    shard = read_shard(folder)
    return open_arena(Selection((shard,), np.arange(len(shard.ids))), home=home)


@given(name=st.sampled_from(FILES), place=st.integers(0), mask=st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_no_changed_byte_goes_unnoticed(whole: Path, name: str, place: int, mask: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(whole, Path(scratch) / "entry"))
        flip(copy / name, place % (copy / name).stat().st_size, mask)
        with pytest.raises(DamagedEntry, match=name):
            opened(copy, "ram")


@given(name=st.sampled_from(FILES), size=st.integers(0))
@settings(max_examples=40, deadline=None)
def test_no_truncation_goes_unnoticed_in_any_home(whole: Path, name: str, size: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(shutil.copytree(whole, Path(scratch) / "entry"))
        data = (copy / name).read_bytes()
        (copy / name).write_bytes(data[: size % len(data)])
        for home in ("file", "ram"):
            with pytest.raises(DamagedEntry, match=name):
                opened(copy, home)


def test_a_whole_entry_verifies_and_a_missing_one_says_so(whole: Path, tmp_path: Path) -> None:
    assert len(opened(whole, "ram").ids) == 2
    with pytest.raises(FileNotFoundError):
        read_shard(tmp_path / "none")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["flip", "truncate", "remove"])
def test_damage_is_repaired_with_a_warning(
    small: CaseSet, cache: CacheConfig, caplog: pytest.LogCaptureFixture, name: str, harm: str
) -> None:
    get_arena(small, SPEC, cache)
    path = entry_in(cache) / name
    match harm:
        case "flip":
            flip(path, 40)
        case "truncate":
            path.write_bytes(path.read_bytes()[:40])
        case "remove":
            path.unlink()
    with caplog.at_level(logging.WARNING):
        second = get_arena(small, SPEC, cache)
    assert_holds(second, small, SPEC, cache.max_points)
    assert len(caplog.records) == ((harm, name) != ("remove", "arena.json"))
    assert all(str(path) in record.getMessage() for record in caplog.records)
    assert len(opened(entry_in(cache), "ram").ids) == 4


def test_a_disk_that_never_reads_back_right_is_named(
    small: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(cases: Selection, *_: object, **__: object) -> None:
        raise DamagedEntry("is not right", cases.shards[0].folder / "image.bin")

    monkeypatch.setattr(build, "open_at_home", damaged)
    with pytest.raises(ValueError, match=r"arena: does not read back.*cache\.dir"):
        get_arena(small, SPEC, cache)
    assert not list((Path(str(cache.dir)) / "arena").iterdir())


def test_nothing_that_is_read_can_run_code() -> None:
    source = Path(file.__file__).parents[1]
    paths = [path for room in ("cache", "cases", "prepare") for path in (source / room).glob("*.py")]
    assert len(paths) > 20
    words = "pickle.dump", "pickle.load", "torch.load", "np.load", "allow_pickle", "marshal", "shelve", "eval(", "exec("
    for path in paths:
        text = path.read_text(encoding="utf-8")
        for word in ("import pickle", *words):
            assert word not in text, f"{path}: {word}"
