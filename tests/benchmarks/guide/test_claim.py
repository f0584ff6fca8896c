"""When a claim holds, when it does not, and when nothing can be told."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from benchmarks.guide.claim import Budget, apart, judged
from hasten.observe.compare import Comparison, compare
from tests.observe.test_compare import meter


def compared(others: float = 0.0, rounds: int = 6, **seconds: float) -> Comparison:
    """As if each arm had taken these seconds every time."""
    arms = {name: itertools.repeat(taken).__next__ for name, taken in seconds.items()}
    return compare(arms, base="old", meter=meter(others), rounds=(rounds, rounds))


@pytest.mark.parametrize(
    ("seconds", "judge", "verdict"),
    [
        ({"old": 2.0, "new": 1.0}, {}, "holds"),
        ({"old": 1.0, "new": 1.0}, {}, "does not hold"),
        ({"old": 1.0, "new": 1.01}, {}, "does not hold"),
        ({"old": 1.0, "advised": 1.0, "other": 0.1}, {"advised": ("advised",)}, "does not hold"),
        ({"old": 1.0, "costly": 3.0, "cheap": 1.0}, {"wanted": "slower"}, "holds"),
        ({"old": 1.0, "cheap": 0.5}, {"wanted": "slower"}, "does not hold"),
        ({"old": 1.0, "new": 0.5}, {"wanted": "not slower"}, "holds"),
        ({"old": 1.0, "new": 1.01}, {"wanted": "not slower"}, "holds"),
        ({"old": 1.0, "new": 1.5}, {"wanted": "not slower"}, "does not hold"),
        ({"others": 1.5, "old": 9.0, "new": 1.0}, {}, "can't tell"),
        ({"rounds": 2, "old": 9.0, "new": 1.0}, {}, "can't tell"),
        ({"old": 9.0, "new": 1.0}, {"difference": 1e-4, "tolerance": 1e-3}, "holds"),
        ({"old": 9.0, "new": 1.0}, {"difference": 0.1, "tolerance": 1e-3}, "does not hold"),
        ({"old": 9.0, "new": 1.0}, {"difference": math.nan, "tolerance": 1e-3}, "does not hold"),
    ],
)
def test_verdicts(seconds: dict[str, Any], judge: dict[str, Any], verdict: str) -> None:
    assert judged(compared(**seconds), **judge).verdict == verdict


def test_the_best_of_several_ways_counts_and_the_others_are_told():
    verdict = judged(compared(old=1.0, worse=1.2, best=0.4, good=0.5))
    assert (verdict.verdict, verdict.measured) == ("holds", "2.50x (2.50 to 2.50), best")
    assert "worse: 0.83x" in verdict.note
    assert "good: 2.00x" in verdict.note


def test_apart():
    one = {"a": torch.tensor([1.0, -4.0]), "b": [torch.tensor([2])]}
    other = {"a": torch.tensor([1.0, -3.0]), "b": [torch.tensor([2])]}
    assert (apart(one, one), apart(one, other)) == (0.0, pytest.approx(0.25))
    assert apart(torch.zeros(2), torch.zeros(3)) == apart(torch.zeros(2), torch.tensor([0.0, math.nan])) == math.inf


def test_a_round_that_takes_far_too_long_is_given_up():
    budget = Budget(seconds=1.0, begun=-1e9)
    with pytest.raises(TimeoutError):
        budget.compare({"old": lambda: 1.0, "new": lambda: 1.0}, base="old")
