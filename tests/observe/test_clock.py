from __future__ import annotations

import subprocess
import sys
import time

import pytest

from hasten.observe import clock as module
from hasten.observe.clock import Clock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A clock that a test turns by hand, in seconds."""
    at = [0]
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: at[0] * 1_000_000_000)
    return at


def test_seconds_add_up_by_name(now: list[int]) -> None:
    clock = Clock()
    for seconds in (2, 3):
        with clock.span("validate"):
            now[0] += seconds
        now[0] += 10
    assert clock.seconds == {"validate": 5.0}


def test_nesting_counts_a_name_once_and_other_names_both(now: list[int]) -> None:
    clock = Clock()
    with clock.span("run"):
        now[0] += 1
        with clock.span("validate"), clock.span("run"):
            now[0] += 2
        now[0] += 4
    assert clock.seconds == {"run": 7.0, "validate": 2.0}


def test_process_start_counts_from_the_launch() -> None:
    before = time.monotonic()
    code = "import time; time.sleep(0.3); from hasten.observe.clock import process_start_seconds as f; print(f())"
    seconds = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 0.3 <= seconds <= time.monotonic() - before + 0.02
