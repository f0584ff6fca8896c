"""What an arena holds is what preparing each case gives."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.cache.build import get_arena
from hasten.cases.sources import load_case_set
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.phantoms.cells import write_cells
from tests.cache.sets import SPEC, assert_holds, write_case_set

SIZES = st.integers(1, 7)
LABELS = st.sampled_from(
    [
        {0: "background"},
        {0: "background", 1: "a"},
        {0: "background", 4: "d", 1: "a"},
        {0: "b", 2: "x", 9: "y", 200: "z"},
    ]
)


@given(
    shapes=st.lists(st.tuples(SIZES, SIZES, SIZES), min_size=1, max_size=5),
    num_channels=st.integers(1, 3),
    labels=LABELS,
    stored=st.sampled_from(["uint8", "int16", "float32"]),
    dtype=st.sampled_from(["float16", "float32"]),
    max_points=st.integers(1, 20),
    threads=st.integers(1, 3),
    home=st.sampled_from(["file", "ram"]),
)
@settings(max_examples=30, deadline=None)
def test_any_set(
    shapes: list[tuple[int, int, int]],
    num_channels: int,
    labels: dict[int, str],
    stored: str,
    dtype: str,
    max_points: int,
    threads: int,
    home: str,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        case_set = write_case_set(Path(folder), shapes, num_channels=num_channels, labels=labels, dtype=stored)
        spec = PrepareConfig(
            spacing=(1.3, 0.0, 0.7), intensity="zscore", crop_foreground=True, dtype=dtype, num_threads=threads
        )
        cache = CacheConfig(dir=folder, home=home, max_points=max_points)
        assert_holds(get_arena(case_set, spec, cache), case_set, spec, max_points)


def test_two_dimensions(tmp_path: Path, cache: CacheConfig) -> None:
    case_set = load_case_set(write_cells(tmp_path / "2d", num_cases=3, shape=(32, 48), radius=8))
    arena = get_arena(case_set, SPEC, cache)
    assert arena.shapes == ((1, 32, 48),) * 3
    assert_holds(arena, case_set, SPEC, cache.max_points)


@pytest.mark.parametrize("home", ["file", "ram"])
def test_all_who_open_an_entry_share_its_memory(small: CaseSet, cache: CacheConfig, home: str) -> None:
    arenas = [get_arena(small, SPEC, replace(cache, home=home)) for _ in range(3)]
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split() for line in maps if line.endswith("image.bin") and str(cache.dir) in line]
    assert len(mapped) == len(arenas)
    assert {fields[1] for fields in mapped} <= {"r--s", "r--p"}  # what can't be written is never copied


@pytest.mark.parametrize("home", ["file", "ram"])
def test_no_process_needs_to_write_to_open(
    small: CaseSet, cache: CacheConfig, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    get_arena(small, SPEC, cache)
    real = Path.open

    def read_only(path: Path, mode: str = "r", *rest: object, **more: object) -> object:
        assert "r" in mode
        assert "+" not in mode
        return real(path, mode, *rest, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", read_only)
    monkeypatch.setattr(Path, "mkdir", None)
    assert get_arena(small, SPEC, replace(cache, home=home)).ids == ("case0", "case1", "case2", "case3")
