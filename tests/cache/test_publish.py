"""Folders appear whole: one builder at a time, and builders that fail or are killed anywhere."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hasten.cache.build import get_arena
from hasten.cache.publish import building, sweep
from hasten.cases.sources import load_case_set
from hasten.config.schema import CacheConfig
from hasten.phantoms.organs import write_phantoms
from tests.cache.sets import SPEC, assert_holds
from tests.processes import Program

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_error_hands_the_turn_on(tmp_path: Path, kind: type[BaseException]) -> None:
    folder = tmp_path / "entry"
    with suppress(kind), building(folder, folder.exists) as partial:
        assert partial is not None
        (partial / "file").write_text("half")
        assert not folder.exists()
        raise kind
    assert list(tmp_path.iterdir()) == []
    with building(folder, folder.exists) as partial:
        assert partial is not None
        assert list(partial.iterdir()) == []


def test_the_first_to_publish_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.cache.publish._lock", lambda *_: (_ for _ in ()).throw(OSError("No locks available")))
    folder = tmp_path / "entry"
    with building(folder, folder.exists) as late, building(folder, folder.exists) as early:
        assert late
        assert early
        (late / "file").write_text("late")
        (early / "file").write_text("early")
    assert (folder / "file").read_text() == "early"
    assert [path.name for path in tmp_path.iterdir()] == ["entry"]


def test_leftovers_are_kept_until_they_are_old(tmp_path: Path) -> None:
    leftover, foreign = tmp_path / ".entry.999999999.0011aabb", tmp_path / ".something"
    leftover.mkdir()
    foreign.mkdir()
    (leftover / "image.bin").write_text("")
    old = time.time() - 2 * 24 * 3600
    for path in (foreign, leftover):
        os.utime(path, (old, old))
    sweep(tmp_path)
    assert leftover.exists()  # a file in it is still written
    os.utime(leftover / "image.bin", (old, old))
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".something"]


BUILD = """
import sys
from hasten.cache.build import get_arena
from hasten.cases.sources import load_case_set
from hasten.config.schema import CacheConfig
from tests.cache.sets import SPEC

folder, built = sys.argv[1], []
case_set, cache = load_case_set(folder + "/set"), CacheConfig(dir=folder + "/" + sys.argv[2], home="ram")
print("ready", flush=True)
sys.stdin.readline()
get_arena(case_set, SPEC, cache, tick=lambda done, total: built.append(done))
print(len(built), flush=True)
"""


def started(folder: Path, cache: str) -> Program:
    return Program("-c", BUILD, str(folder), cache)


def answer(process: Program, text: str | None = None) -> str:
    if text is not None:
        process.stdin.write(text)
        process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_eight_processes_make_one_build(tmp_path: Path, rounds: int) -> None:
    write_phantoms(tmp_path / "set", num_cases=6, shape=(8, 24, 24))
    processes = []
    for number in range(rounds):
        processes = [started(tmp_path, f"cache{number}") for _ in range(8)]
        assert [answer(process) for process in processes] == ["ready"] * 8
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        counts = sorted(int(answer(process)) for process in processes)
        assert counts == [0] * 7 + [6]
        for process in processes:
            process.communicate(timeout=600)


@pytest.mark.parametrize("kills", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_a_build_killed_anywhere_is_finished_by_the_next(tmp_path: Path, kills: int) -> None:
    case_set = load_case_set(write_phantoms(tmp_path / "set", num_cases=16, shape=(16, 48, 48)))
    whole = started(tmp_path, "whole")
    assert answer(whole) == "ready"
    begin = time.monotonic()
    assert answer(whole, "go\n") == "16"
    seconds = time.monotonic() - begin
    whole.communicate(timeout=600)
    draw = random.Random(0)
    for number in range(kills):
        process = started(tmp_path, f"cache{number}")
        assert answer(process) == "ready"
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(draw.uniform(0, seconds))
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=600)
        cache = CacheConfig(dir=str(tmp_path / f"cache{number}"), home="ram")
        assert_holds(get_arena(case_set, SPEC, cache), case_set, SPEC, cache.max_points)
        (folder,) = (each for each in (tmp_path / f"cache{number}" / "arena").iterdir() if each.is_dir())
        assert sorted(path.name for path in folder.iterdir()) == ["arena.json", "image.bin", "label.bin", "points.bin"]
