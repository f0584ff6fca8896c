"""Cases lie in shards, whatever set they were prepared for: what changes is prepared, and nothing else."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hasten.cache.build as build
from hasten.cache.arena import Arena
from hasten.cache.build import get_arena, is_prepared
from hasten.cache.publish import read_checked
from hasten.cases.nifti import read_nifti, write_nifti
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import CacheConfig
from tests.cache.sets import SPEC, assert_same_cases, write_case_set

SHAPES = [(2, 3, 4), (5, 1, 2), (3, 3, 3), (4, 2, 5), (1, 4, 4), (2, 2, 2)]


@contextmanager
def prepared() -> Iterator[list[str]]:
    """Ids of the cases that are prepared inside the block."""
    ids: list[str] = []
    real = build.load_prepared

    def load(case: Case, *args: Any, **options: Any) -> Any:
        ids.append(case.id)
        return real(case, *args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load_prepared", load)
        yield ids


@pytest.fixture
def six(tmp_path: Path) -> CaseSet:
    return write_case_set(tmp_path / "set", SHAPES, num_channels=2)


def some(case_set: CaseSet, *numbers: int) -> CaseSet:
    return replace(case_set, cases=tuple(case_set.cases[number] for number in numbers))


def shards_in(cache: CacheConfig) -> list[Path]:
    return sorted((Path(str(cache.dir)) / "arena").iterdir())


def rebuilt(case_set: CaseSet, cache: CacheConfig) -> Arena:
    """The same in a cache of its own: one shard, in the set's order."""
    with tempfile.TemporaryDirectory() as folder:
        return get_arena(case_set, SPEC, replace(cache, dir=folder, home="ram"))


def touched(path: Path) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def other_content(path: Path) -> None:
    volume = read_nifti(path)
    write_nifti(path, volume.array[0][::-1].copy(), volume.affine)
    touched(path)


CHANGES: dict[str, tuple[Callable[[CaseSet], CaseSet], list[str]]] = {
    "nothing": (lambda s: s, []),
    "removed": (lambda s: some(s, 0, 1, 3, 4), []),
    "another order": (lambda s: some(s, 4, 2, 0, 3, 1), []),
    "added at the end": (lambda s: replace(s, cases=(*s.cases, replace(s.cases[0], id="new"))), ["new"]),
    "added in front": (lambda s: replace(s, cases=(replace(s.cases[1], id="new"), *s.cases)), ["new"]),
    "replaced": (lambda s: replace(s, cases=(replace(s.cases[1], id="new"), *s.cases[1:])), ["new"]),
    "another name of the set": (lambda s: replace(s, name="other"), []),
    "another source of the set": (lambda s: replace(s, source=Path("/elsewhere")), []),
    "another class": (lambda s: replace(s, labels={**s.labels, 7: "seventh"}), [f"case{n}" for n in range(5)]),
}


@pytest.mark.parametrize("home", ["file", "ram"])
@pytest.mark.parametrize("change", CHANGES)
def test_only_what_is_new_is_prepared(six: CaseSet, cache: CacheConfig, change: str, home: str) -> None:
    first = some(six, 0, 1, 2, 3, 4)
    get_arena(first, SPEC, cache)
    changed, wanted = CHANGES[change][0](first), CHANGES[change][1]
    assert is_prepared(changed, SPEC, cache) == (not wanted)
    with prepared() as ids:
        arena = get_arena(changed, SPEC, replace(cache, home=home))
        assert sorted(ids) == wanted
        get_arena(changed, SPEC, cache)
        get_arena(first, SPEC, cache)
    assert sorted(ids) == wanted
    assert_same_cases(arena, rebuilt(changed, cache))


@pytest.mark.parametrize("harm", [touched, other_content])
@pytest.mark.parametrize("which", ["image", "label"])
def test_a_changed_case_is_prepared_alone(
    six: CaseSet, cache: CacheConfig, harm: Callable[[Path], None], which: str
) -> None:
    get_arena(six, SPEC, cache)
    case = six.cases[3]
    assert case.label
    harm(case.label if which == "label" else case.image[1])
    with prepared() as ids:
        arena = get_arena(six, SPEC, cache)
    assert ids == ["case3"]
    assert_same_cases(arena, rebuilt(six, cache))


def test_a_set_larger_than_a_shard_is_several(
    six: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "SHARD_BYTES", 200)
    with prepared() as ids:
        arena = get_arena(six, SPEC, cache)
    assert set(ids) == {case.id for case in six.cases}
    assert len(shards_in(cache)) == 3
    assert_same_cases(arena, rebuilt(six, cache))
    with prepared() as ids:
        assert_same_cases(get_arena(six, SPEC, cache), arena)
    assert ids == []


@pytest.fixture
def three_shards(six: CaseSet, cache: CacheConfig) -> CaseSet:
    """Two cases in each, and a set that takes five of them in an order of its own."""
    for numbers in ((0, 1), (2, 3), (4, 5)):
        get_arena(some(six, *numbers), SPEC, cache)
    return some(six, 5, 0, 2, 1, 3)


@pytest.mark.parametrize("home", ["file", "ram", "device", "auto"])
def test_every_home_holds_the_cases_of_three_shards(three_shards: CaseSet, cache: CacheConfig, home: str) -> None:
    with prepared() as ids:
        arena = get_arena(three_shards, SPEC, replace(cache, home=home))
    assert ids == []
    assert len(shards_in(cache)) == 3
    assert_same_cases(arena, rebuilt(three_shards, cache))
    assert_same_cases(arena.to("cpu", home="ram"), arena)


@pytest.mark.parametrize("harm", ["folder", "arena.json", "image.bin", "points.bin", "flip"])
def test_cases_of_a_shard_that_is_gone_are_prepared_again_and_named(
    three_shards: CaseSet, cache: CacheConfig, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    get_arena(three_shards, SPEC, cache)
    (shard,) = (path for path in shards_in(cache) if "case2" in read_checked(path / "arena.json")["cases"])
    if harm == "folder":
        shutil.rmtree(shard)
    elif harm == "flip":
        data = bytearray((shard / "label.bin").read_bytes())
        data[0] ^= 1
        (shard / "label.bin").write_bytes(data)
    else:
        (shard / harm).unlink()
    with caplog.at_level(logging.WARNING), prepared() as ids:
        again = get_arena(three_shards, SPEC, cache)
    assert sorted(ids) == ["case2", "case3"]
    assert [shard.name in record.getMessage() for record in caplog.records] == [True] * (
        harm not in ("folder", "arena.json")
    )
    assert_same_cases(again, rebuilt(three_shards, cache))


@given(steps=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_any_sequence_of_sets_is_what_plain_builds_give(steps: list[list[int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        six = write_case_set(Path(folder) / "set", SHAPES)
        cache = CacheConfig(dir=f"{folder}/cache", home="ram", max_points=3)
        known: set[str] = set()
        for numbers in steps:
            case_set = some(six, *numbers)
            with prepared() as ids:
                arena = get_arena(case_set, SPEC, cache)
            assert sorted(ids) == sorted({case.id for case in case_set.cases} - known)
            known |= set(ids)
            assert_same_cases(arena, rebuilt(case_set, cache))
