from __future__ import annotations

from typing import Any

import pytest

from benchmarks.outcome import Time, best_within, cell, faster, median_time, series, time_to


def run(*points: tuple[float, float | None], stopped: str = "target", cap: float = 500.0) -> dict[str, Any]:
    """A result with the given (seconds, Dice) points."""
    dice = [value for _, value in points if value is not None]
    return {
        "curve": [{"seconds": seconds, "dice": value} for seconds, value in points],
        "stopped": stopped,
        "settings": {"max_seconds": cap},
        "best": max(dice, default=None),
        "seconds_per_epoch": [2.0, 9.0, 3.0],
    }


CUT_OFF = {"stopped": "max_seconds", "cap": 100.0}


def test_time_is_that_of_the_first_validation_that_reaches_it() -> None:
    result = run((10, 0.5), (20, 0.85), (30, 0.8), (40, 0.9))
    assert time_to(result, 0.85) == Time(20, True)
    assert time_to(result, 0.86) == Time(40, True)


def test_a_run_that_was_cut_off_bounds_the_time_by_its_cap() -> None:
    # The last validation ends after the cap, but the steps that could have helped ended with it.
    assert time_to(run((90, 0.5), (104, 0.6), **CUT_OFF), 0.8) == Time(100, False)


def test_a_run_that_ended_at_a_lower_target_bounds_by_what_it_saw() -> None:
    assert time_to(run((10, None), (30, 0.85)), 0.88) == Time(30, False)
    assert time_to(run(stopped="schedule"), 0.88) == Time(0, False)


def test_median_is_exact_only_where_no_cut_off_run_could_move_it() -> None:
    fast, slow, cut = run((10, 0.9)), run((30, 0.9)), run((99, 0.1), **CUT_OFF)
    assert median_time([slow, fast, cut], 0.9) == Time(30, True)
    assert median_time([fast, cut, cut], 0.9) == Time(100, False)
    assert median_time([fast, cut], 0.9) == Time(55, False)
    # A run that gave up early may have needed any time at all, so that the median is a bound although two reached it.
    early = run((5, 0.1), stopped="schedule")
    assert median_time([slow, fast, early], 0.9) == Time(10, False)
    assert median_time([], 0.9) is None


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


def test_best_within_leaves_out_what_came_later() -> None:
    runs = [run((100, 0.85), (610, 0.95)), run((100, 0.87), (200, 0.86)), run((50, 0.7))]
    assert best_within(runs, 600) == 0.85
    assert best_within([run((700, 0.9))], 600) is None


def test_table_cell() -> None:
    cut = run((99, 0.1), **CUT_OFF)
    assert cell([run((10, 0.9)), run((30, 0.9)), cut], 0.9) == "30.0 s [10.0-> 100.0], 2/3"
    assert cell([cut, cut], 0.9) == "> 100 s, 0/2"
    assert cell([run((10, 0.9)), cut, cut], 0.9) == "> 100.0 s [10.0-> 100.0], 1/3"
    assert cell([], 0.9) == "-"


def test_raw_times_and_bounds_are_apart() -> None:
    found = series({"fast": [run((10, 0.9)), run((99, 0.1), **CUT_OFF)]}, [0.9])
    assert found == {
        "fast/to_0.90_s": [10],
        "fast/to_0.90_at_least_s": [100.0],
        "fast/best_dice": [0.9, 0.1],
        "fast/epoch_s": [3.0, 3.0],
    }
