"""When a claim holds, when it does not, and when nothing can be told."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from benchmarks.guide.claim import Budget, apart, judged
from hasten.observe.compare import Comparison, compare


class FakeMeter:
    def __init__(self, others: float = 0.0) -> None:
        self.value = others

    def others(self) -> float:
        return self.value


def compared(others: float = 0.0, rounds: int = 6, **seconds: float) -> Comparison:
    """As if each arm had taken these seconds every time."""
    arms = {name: itertools.repeat(taken).__next__ for name, taken in seconds.items()}
    return compare(arms, base="old", meter=FakeMeter(others), rounds=(rounds, rounds))


def test_a_clearly_faster_arm_holds_with_its_figure_and_interval():
    verdict = judged(compared(old=2.0, new=1.0))
    assert verdict.verdict == "holds"
    assert verdict.measured == "2.00x (2.00 to 2.00), new"
    assert verdict.why == ""


@pytest.mark.parametrize("taken", [1.0, 1.01, 1.5])
def test_what_is_no_faster_does_not_hold(taken):
    verdict = judged(compared(old=1.0, new=taken))
    assert verdict.verdict == "does not hold"
    assert f"{1 / taken:.2f}x" in verdict.measured


@pytest.mark.parametrize(
    ("taken", "wanted", "seems"),
    [(1.0, "faster", True), (2.0, "faster", False), (2.5, "slower", True), (2.0, "not slower", True)],
)
def test_where_nothing_can_be_told_it_says_what_it_looks_like(taken, wanted, seems):
    verdict = judged(compared(others=1.0, old=2.0, new=taken), wanted=wanted)
    assert (verdict.verdict, verdict.seems) == ("can't tell", seems)
    assert "as the guide says" in verdict.why or "other than the guide says" in verdict.why
    assert judged(compared(old=2.0, new=taken), wanted=wanted).seems is None


def test_the_best_of_several_ways_counts_and_the_others_are_told():
    verdict = judged(compared(old=1.0, worse=1.2, best=0.4, good=0.5))
    assert verdict.verdict == "holds"
    assert verdict.measured.endswith(", best")
    assert "worse: 0.83x" in verdict.note
    assert "good: 2.00x" in verdict.note


def test_only_the_advised_way_counts():
    verdict = judged(compared(old=1.0, advised=1.0, other=0.1), advised=("advised",))
    assert verdict.verdict == "does not hold"
    assert "other: 10.00x" in verdict.note


def test_a_cost_holds_if_the_arm_is_slower():
    verdict = judged(compared(old=1.0, costly=3.0, cheap=1.0), wanted="slower")
    assert verdict.verdict == "holds"
    assert verdict.measured.endswith(", costly")
    assert judged(compared(old=1.0, cheap=0.5), wanted="slower").verdict == "does not hold"


@pytest.mark.parametrize(
    ("taken", "verdict"), [(0.5, "holds"), (1.01, "holds"), (1.5, "does not hold")], ids=["faster", "same", "slower"]
)
def test_as_fast_as(taken, verdict):
    assert judged(compared(old=1.0, new=taken), wanted="not slower").verdict == verdict


def test_a_busy_machine_can_not_tell_however_clear_the_times():
    verdict = judged(compared(others=1.5, old=9.0, new=1.0))
    assert verdict.verdict == "can't tell"
    assert "other programs used 1.5 cores" in verdict.why


def test_too_few_rounds_can_not_tell():
    verdict = judged(compared(rounds=2, old=9.0, new=1.0))
    assert verdict.verdict == "can't tell"
    assert verdict.why.startswith("out of time after 2 rounds; it looks ")


def test_noise_beside_no_gain_can_not_tell():
    arms = {
        "old": itertools.cycle([1.0, 2.0, 4.0]).__next__,
        "noisy": itertools.cycle([4.0, 1.0, 1.5]).__next__,
        "even": itertools.cycle([1.0, 2.0, 4.0]).__next__,
    }
    verdict = judged(compare(arms, base="old", meter=FakeMeter()))
    assert verdict.verdict == "can't tell"
    assert "spread too much" in verdict.why


@pytest.mark.parametrize("difference", [0.1, math.inf, math.nan])
def test_another_result_does_not_hold_however_fast(difference):
    verdict = judged(compared(old=9.0, new=1.0), difference=difference, tolerance=1e-3)
    assert verdict.verdict == "does not hold"
    assert "results differ" in verdict.why


def test_a_difference_within_the_tolerance_is_kept():
    verdict = judged(compared(old=9.0, new=1.0), difference=1e-4, tolerance=1e-3)
    assert (verdict.verdict, verdict.difference) == ("holds", 1e-4)


def test_apart():
    one = {"a": torch.tensor([1.0, -4.0]), "b": [torch.tensor([2])]}
    other = {"a": torch.tensor([1.0, -3.0]), "b": [torch.tensor([2])]}
    assert apart(one, one) == 0.0
    assert apart(one, other) == pytest.approx(0.25)
    assert apart(torch.zeros(2), torch.zeros(3)) == math.inf
    assert apart(torch.zeros(2), torch.tensor([0.0, math.nan])) == math.inf
    assert apart(torch.zeros(2), torch.ones(2)) == 1.0


def test_sizes_of_a_budget():
    assert Budget().size(64, 8, cuda=128) == 64
    assert Budget(device="cuda").size(64, 8, cuda=128) == 128
    assert Budget(device="cuda").size(64, 8) == 64
    assert Budget(quick=True, device="cuda").size(64, 8, cuda=128) == 8


def test_a_round_that_takes_far_too_long_is_given_up():
    budget = Budget(seconds=1.0, begun=-1e9)
    with pytest.raises(TimeoutError):
        budget.compare({"old": lambda: 1.0, "new": lambda: 1.0}, base="old")
