"""When a rank counts as standing still, and what is left of it then."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hasten.distribute.launch.watchdog import (
    STALLED,
    VARIABLE,
    Watchdog,
    stack_file,
    watchdog_of,
)
from hasten.distribute.world import World


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr("hasten.distribute.launch.watchdog.time", SimpleNamespace(monotonic=lambda: self.now))


def dog_of(where: Path) -> Watchdog:
    return Watchdog(rank=3, stall_s=10.0, where=where)


def test_only_time_between_steps_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, dog = Clock(monkeypatch), dog_of(tmp_path)
    clock.now += 1000  # preparing, before the first step
    assert not dog.look()
    dog.beat(1)
    assert not dog.look()
    clock.now += 9
    assert not dog.look()
    dog.beat(2)
    clock.now += 9
    assert not dog.look()
    with dog.paused():
        clock.now += 1000
        assert not dog.look()
    clock.now += 9
    assert not dog.look()
    clock.now += 1
    assert dog.look()


def test_where_a_rank_is_is_noted_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rank to end may take the others along: they have said by then how far they are."""
    clock, file = Clock(monkeypatch), stack_file(tmp_path, 3)
    with dog_of(tmp_path) as dog:
        dog.beat(7)
        dog.look()
        clock.now += 4
        dog.look()
        assert '"step": -1' in file.read_text()
        clock.now += 1
        assert not dog.look()
        assert '"step": 7' in file.read_text()


def test_a_block_that_ends_well_leaves_nothing(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with Watchdog(rank=0, stall_s=60.0, where=tmp_path / "new") as dog:
        dog.beat(1)
        assert stack_file(tmp_path / "new", 0).exists()
    assert not list((tmp_path / "new").iterdir())
    assert dog._stack is not None
    assert dog._stack.closed
    assert set(threading.enumerate()) <= before


STUCK = """
import faulthandler, sys, time
from pathlib import Path
from hasten.distribute.launch.watchdog import Watchdog

def stuck():
    {what}

with Watchdog(rank=0, stall_s=0.2, where=Path(sys.argv[1])) as dog:
    dog.beat(1)
    stuck()
"""


@pytest.mark.timeout(60)
def test_a_process_that_is_stuck_is_ended_with_its_stack(tmp_path: Path) -> None:
    script = STUCK.format(what="time.sleep(600)")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == STALLED
    assert "in stuck" in done.stderr
    stack = stack_file(tmp_path, 0).read_text().splitlines()
    assert json.loads(stack[0])["step"] == 1
    assert any("in stuck" in line for line in stack)


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_process_that_holds_the_interpreter_is_ended_too(tmp_path: Path) -> None:
    held = textwrap.dedent("""
    import ctypes, time
        time.sleep(0.12)
        ctypes.PyDLL(None).sleep(600)  # without giving the interpreter back
    """).strip()
    done = subprocess.run(
        [sys.executable, "-c", STUCK.format(what=held), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "in stuck" in stack_file(tmp_path, 0).read_text()


@pytest.mark.parametrize(
    ("size", "message", "wanted"),
    [(2, {}, 15.0), (1, {}, None), (1, {VARIABLE: "7"}, 7.0), (2, {VARIABLE: "0"}, None)],
)
def test_how_long_a_step_may_take(
    tmp_path: Path, size: int, message: dict[str, str], wanted: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in message.items():
        monkeypatch.setenv(name, value)
    dog = watchdog_of(World(size=size), tmp_path, timeout_s=30.0)
    assert (dog.stall_s if dog is not None else None) == wanted


def test_seconds_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "soon")
    with pytest.raises(ValueError, match=f"{VARIABLE}=soon: must be a number"):
        watchdog_of(World(), tmp_path, timeout_s=30.0)
    with pytest.raises(ValueError, match="must be above 0"):
        Watchdog(rank=0, stall_s=0.0, where=tmp_path)
