from __future__ import annotations

from typing import Any

import pytest

from benchmarks.outcome import faster, series
from tests.benchmarks.ladder.results import CUT_OFF, run


def test_ratio_of_medians() -> None:
    claim = faster("x", [run((10, 0.9)), run((20, 0.9)), run((12, 0.9))], [run((48, 0.9))], 0.9, goal=4)
    assert (claim.value, claim.goal, claim.holds, claim.name) == (4.0, ">= 4", True, "x")


def test_ratio_to_a_peer_that_was_cut_off_is_a_bound() -> None:
    claim = faster("x", [run((10, 0.9))], [run((99, 0.1), **CUT_OFF)], 0.9, goal=30)
    assert claim.value == 10
    assert not claim.holds
    assert claim.name == "x (at least: stopped after 100 s)"


@pytest.mark.parametrize(
    ("ours", "peer", "why"),
    [
        ([run((10, 0.5), stopped="schedule")], [run((99, 0.9))], "not reached by Hasten"),
        ([run((10, 0.9)), run((10, 0.5), **CUT_OFF)], [run((99, 0.9))], "not reached by Hasten"),
        ([], [run((99, 0.9))], "not run"),
        ([run((10, 0.9))], [], "not run"),
    ],
)
def test_nothing_is_claimed_without_a_time_of_ours(ours: list[Any], peer: list[Any], why: str) -> None:
    claim = faster("x", ours, peer, 0.9, goal=0.001)
    assert claim.value is None
    assert not claim.holds
    assert why in claim.name


def test_raw_times_and_bounds_are_apart() -> None:
    result = series({"fast": [run((10, 0.9)), run((99, 0.1), **CUT_OFF)]}, [0.9])
    assert result == {
        "fast/to_0.90_s": [10],
        "fast/to_0.90_at_least_s": [100.0],
        "fast/best": [0.9, 0.1],
        "fast/epoch_s": [3.0, 3.0],
        "fast/cpu_percent": [90.0, 90.0],
    }
