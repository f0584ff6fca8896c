from __future__ import annotations

from benchmarks.ladder.outcome import Time, best_within, median_time, time_to
from tests.benchmarks.ladder.results import CUT_OFF, run


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


def test_best_within_leaves_out_what_came_later() -> None:
    runs = [run((100, 0.85), (610, 0.95)), run((100, 0.87), (200, 0.86)), run((50, 0.7))]
    assert best_within(runs, 600) == 0.85
    assert best_within([run((700, 0.9))], 600) is None
