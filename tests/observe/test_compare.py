"""Gain, loss, none, and what can't be told."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

from hasten.observe.compare import compare, judge


def meter(others: float = 0.0) -> Any:
    return SimpleNamespace(others=lambda: others)


def arms(**series):
    """Calls that return the given seconds, over and over."""
    return {name: itertools.cycle(values).__next__ for name, values in series.items()}


def test_a_clear_gain_stops_after_the_least_rounds():
    comparison = compare(arms(old=[2.0, 2.1], new=[1.0, 1.05]), base="old", meter=meter())
    assert comparison.arms["new"].verdict == "faster"
    assert 1.8 < comparison.arms["new"].low <= comparison.arms["new"].gain <= comparison.arms["new"].high < 2.2
    assert len(comparison.seconds["old"]) == 6


def test_where_the_best_is_wanted_no_round_is_spent_on_the_others():
    series = {"old": [1.0], "noisy": [0.7, 1.3, 0.9], "new": [0.5]}
    each = compare(arms(**series), base="old", meter=meter())
    best = compare(arms(**series), base="old", meter=meter(), best_only=True)
    assert (len(each.seconds["old"]), len(best.seconds["old"])) == (24, 6)
    assert best.arms["new"].verdict == "faster"
    close = {**series, "new": [0.8, 0.6]}
    assert len(compare(arms(**close), base="old", meter=meter(), best_only=True).seconds["old"]) == 24


def test_noise_is_not_a_gain():
    draw = random.Random(0)
    noisy = {name: (lambda: draw.choice([1.0, 3.0, 9.0])) for name in ("old", "new")}
    comparison = compare(noisy, base="old", meter=meter())
    assert comparison.arms["new"].verdict == "unclear"
    assert "spread too much" in comparison.arms["new"].why
    assert len(comparison.seconds["old"]) == 24


def test_a_busy_machine_gives_no_verdict_however_clear_the_times():
    comparison = compare(arms(old=[9.0], new=[1.0]), base="old", meter=meter(1.0))
    assert comparison.busy
    assert comparison.arms["new"].verdict == "unclear"
    assert "other programs used 1.0 cores" in comparison.arms["new"].why


def test_turns_are_reversed_every_other_round_and_warm_up_is_not_recorded():
    called = []

    def arm(name):
        return lambda: called.append(name) or 1.0

    comparison = compare({"a": arm("a"), "b": arm("b")}, base="a", meter=meter(), rounds=(3, 3))
    assert called == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert len(comparison.seconds["a"]) == 3


def test_a_gain_is_that_of_the_times_that_are_shown():
    """Each arm is slow in every other round, so most rounds favour one arm though both take the same time."""
    base, arm = [0.96, 0.8, 0.801, 0.96, 0.801, 0.96, 0.8], [0.8, 0.801, 0.96, 0.8, 0.96, 0.8, 0.801]
    gain, low, high, verdict = judge(base, arm, 0.03)
    assert gain == pytest.approx(0.801 / 0.801)
    assert low <= gain <= high
    assert verdict == "unclear"
    compared = compare(arms(old=base, new=arm), base="old", rounds=(6, 6), meter=meter())
    assert compared.arms["new"].gain == compared.median("old") / compared.median("new")


@pytest.mark.parametrize("n", [5, 6, 9, 12, 20, 24])
def test_the_interval_holds_the_true_gain_about_as_often_as_it_says(n):
    draw, held, trials = random.Random(1), 0, 1500
    for _ in range(trials):
        base = [draw.lognormvariate(0.0, 0.2) for _ in range(n)]
        arm = [draw.lognormvariate(0.0, 0.2) / 1.1 for _ in range(n)]
        _, low, high, _ = judge(base, arm, 0.03)
        held += low <= 1.1 <= high
    assert held / trials > 0.92
