"""Folders appear whole: several processes at once, and processes that are killed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import hasten.cache.publish as publish
from hasten.cache.build import get_arena
from hasten.cache.file import verify_entry
from hasten.cache.publish import discard, published
from hasten.cases.sources import load_case_set
from hasten.config.schema import CacheConfig
from hasten.files import is_locked
from hasten.phantoms.organs import write_phantoms
from tests.cache.sets import SPEC, assert_holds
from tests.processes import Program

FILL = """
import sys, time
from pathlib import Path
from hasten.cache.build import get_arena
from hasten.cases.sources import load_case_set
from hasten.config.schema import CacheConfig
from tests.cache.sets import SPEC

name, other, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def tick(done, total):
    if done == 2:
        (folder / f"{name}.ready").write_text("")
        end = time.monotonic() + 60
        while not (folder / f"{other}.ready").exists() and time.monotonic() < end:
            time.sleep(0.01)

arena = get_arena(
    load_case_set(folder / "set"), SPEC, CacheConfig(dir=str(folder / "cache"), home="ram"), tick=tick
)
print(arena.store.values["image"].float().sum().item(), arena.store.sets.points.tolist())
"""
"""Fills an entry, and waits after two cases until the file of the other name is there."""


@contextmanager
def process(*arguments: str, program: str = FILL) -> Iterator[Program]:
    with Program("-c", program, *arguments) as running:
        try:
            yield running
        finally:
            running.kill()


def wait_for(path: Path, running: Program) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_second_process_waits_and_opens_what_the_first_filled(tmp_path: Path) -> None:
    case_set = load_case_set(write_phantoms(tmp_path / "set", num_cases=3, shape=(8, 16, 16)))
    with process("one", "go", str(tmp_path)) as one:
        wait_for(tmp_path / "one.ready", one)
        with process("two", "nobody", str(tmp_path)) as two:
            with pytest.raises(subprocess.TimeoutExpired):
                two.communicate(timeout=3)
            (tmp_path / "go.ready").write_text("")
            (out, err), (out2, err2) = one.communicate(timeout=600), two.communicate(timeout=600)
    assert (one.returncode, two.returncode) == (0, 0), err + err2
    assert err == err2 == ""
    assert out == out2 != ""
    assert not (tmp_path / "two.ready").exists()  # it filled nothing
    (folder,) = (tmp_path / "cache" / "arena").iterdir()
    assert verify_entry(folder) == 3
    cache = CacheConfig(dir=str(tmp_path / "cache"), home="ram")
    assert_holds(get_arena(case_set, SPEC, cache), case_set, SPEC, cache.max_points)


def test_what_a_killed_fill_finished_is_gone_on_with(tmp_path: Path) -> None:
    case_set = load_case_set(write_phantoms(tmp_path / "set", num_cases=3, shape=(8, 16, 16)))
    with process("alone", "nobody", str(tmp_path)) as running:
        wait_for(tmp_path / "alone.ready", running)
        (leftover,) = (tmp_path / "cache" / "arena").iterdir()
        assert is_locked(leftover)
        running.kill()
        running.wait()
    assert not is_locked(leftover)
    (leftover / ".arena.json.elsewhere-1.1.0011aabb").write_text("{")  # as a kill while it was written leaves it
    ticks: list[tuple[int, int]] = []
    cache = CacheConfig(dir=str(tmp_path / "cache"), home="ram")
    arena = get_arena(case_set, SPEC, cache, tick=lambda done, total: ticks.append((done, total)))
    assert ticks == [(3, 3)]
    assert_holds(arena, case_set, SPEC, cache.max_points)
    (folder,) = (tmp_path / "cache" / "arena").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["arena.json", "image.bin", "label.bin", "points.bin"]


def test_folders_of_other_machines_are_kept_until_they_are_old(tmp_path: Path) -> None:
    elsewhere, foreign = tmp_path / ".entry.elsewhere-1.999999999.0011aabb", tmp_path / ".something"
    elsewhere.mkdir()
    foreign.mkdir()
    (elsewhere / "image.bin").write_text("")
    old = time.time() - 8 * 24 * 3600
    for path in (foreign, elsewhere):
        os.utime(path, (old, old))
    with published(tmp_path / "a"):
        pass
    assert elsewhere.exists()  # a file in it is still written
    os.utime(elsewhere / "image.bin", (old, old))
    with published(tmp_path / "b"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".something", "a", "b"]


def test_the_first_to_publish_wins(tmp_path: Path) -> None:
    with published(tmp_path / "entry") as late:
        (late / "file").write_text("late")
        with published(tmp_path / "entry") as early:
            (early / "file").write_text("early")
    assert (tmp_path / "entry" / "file").read_text() == "early"
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_nothing_shows_before_the_end(tmp_path: Path) -> None:
    with suppress(RuntimeError), published(tmp_path / "entry") as temporary:
        (temporary / "file").write_text("")
        assert not (tmp_path / "entry").exists()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_discard(tmp_path: Path) -> None:
    discard(tmp_path / "none")
    with published(tmp_path / "entry") as temporary:
        (temporary / "file").write_text("kept open")
    with (tmp_path / "entry" / "file").open() as stream:
        discard(tmp_path / "entry")
        assert stream.read() == "kept open"
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_synced_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(_: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(publish.os, "fsync", unable)
    with published(tmp_path / "entry"):
        pass
    assert (tmp_path / "entry").is_dir()
