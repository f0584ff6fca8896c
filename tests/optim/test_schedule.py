from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hasten.optim.schedule import (
    Kind,
    PacedSchedule,
    Schedule,
    scaled_rate,
    set_rate,
    warmup_start,
)

KINDS = get_args(Kind)
MILESTONES = ((0.5, 0.1), (0.75, 0.01))


@given(
    kind=st.sampled_from(KINDS), steps=st.integers(1, 300), peak=st.floats(1e-6, 10),
    warmup_fraction=st.floats(0, 0.9), first=st.floats(0, 1),
)  # fmt: skip
def test_every_kind_rises_to_its_peak_and_never_rises_again(
    kind: Any, steps: int, peak: float, warmup_fraction: float, first: float
) -> None:
    schedule = Schedule(
        kind=kind, steps=steps, peak=peak, warmup_fraction=warmup_fraction, first=first, milestones=MILESTONES
    )
    rates = [schedule(step) for step in range(steps + 1)]
    warmup = schedule.warmup
    assert all(0 <= rate <= peak * (1 + 1e-12) for rate in rates)
    assert all(later >= earlier for earlier, later in pairwise(rates[:warmup]))
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(rates[warmup:]))
    assert [schedule(step) for step in reversed(range(steps + 1))] == rates[::-1]
    if warmup == steps:
        return
    assert schedule(steps + 7) == schedule(steps)
    if kind == "step" and warmup >= steps / 2:
        return
    assert rates[warmup] == pytest.approx(peak)
    # No jump: no step is longer than the steepest part of the shape, or than the rise's.
    steepest = {"one_cycle": math.pi / 2, "cosine": math.pi / 2, "constant": 0.0}
    if kind in steepest:
        jump = max(abs(later - earlier) for earlier, later in pairwise(rates))
        assert jump <= peak * (max(steepest[kind] / (steps - warmup), 1 / max(1, warmup)) + 1e-9)


def test_shapes_by_hand() -> None:
    def rates(kind: Any, **more: Any) -> list[float]:
        schedule = Schedule(kind=kind, steps=8, peak=2.0, warmup_fraction=more.pop("warmup_fraction", 0.0), **more)
        return [schedule(step) for step in range(9)]

    assert rates("constant") == [2.0] * 9
    assert rates("constant", warmup_fraction=0.5, first=0.2) == pytest.approx([0.4, 0.8, 1.2, 1.6, 2, 2, 2, 2, 2])
    assert rates("cosine") == pytest.approx([1 + math.cos(math.pi * step / 8) for step in range(9)])
    assert rates("cosine", warmup_fraction=0.25)[2:] == pytest.approx(
        [1 + math.cos(math.pi * step / 6) for step in range(7)]
    )
    assert rates("poly") == pytest.approx([2 * (1 - step / 8) ** 0.9 for step in range(9)])
    assert rates("step", milestones=MILESTONES) == pytest.approx([2.0] * 4 + [0.2] * 2 + [0.02] * 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "schedule of 0 steps"),
        ({"warmup_fraction": 1.0}, "warmup_fraction is 1"),
        ({"milestones": ((0.7, 0.1), (0.5, 0.01))}, "the shares rise"),
        ({"milestones": ((1.5, 0.1),)}, "from 0 to 1"),
    ],
)
def test_impossible_schedules_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**{"steps": 10, "peak": 1.0, **wrong})


def test_the_linear_scaling_rule() -> None:
    assert scaled_rate(0.1, 1024, 256) == pytest.approx(0.4)
    assert scaled_rate(0.1, 64, 256) == pytest.approx(0.025)
    # The rise starts at the rate that was meant for the reference.
    assert scaled_rate(0.1, 1024, 256) * warmup_start(1024, 256) == pytest.approx(0.1)
    assert warmup_start(256, 256) == warmup_start(8, 256) == 0.04
    with pytest.raises(ValueError, match="at least 1"):
        scaled_rate(0.1, 0, 256)


def _optimizer() -> torch.optim.Optimizer:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    groups: list[dict[str, Any]] = [
        {"params": first.parameters(), "lr": 3.0}, {"params": second.parameters(), "lr": torch.tensor(7.0)}
    ]  # fmt: skip
    return torch.optim.SGD(groups, lr=1.0)


def test_a_tensor_rate_is_set_in_place() -> None:
    optimizer = _optimizer()
    rate = optimizer.param_groups[1]["lr"]
    set_rate(optimizer, 0.125)
    assert optimizer.param_groups[0]["lr"] == 0.125
    assert optimizer.param_groups[1]["lr"] is rate
    assert rate == 0.125


@given(kind=st.sampled_from(KINDS), steps=st.integers(1, 3000))
def test_a_schedule_that_nothing_hurries_is_the_schedule_itself(kind: Any, steps: int) -> None:
    schedule = Schedule(kind=kind, steps=steps, peak=0.3, milestones=MILESTONES)
    paced = PacedSchedule(schedule=schedule, steps=steps)
    for step in range(1, steps + 1):
        assert paced(step - 1) == schedule(step - 1)
        paced.finish_in(10 * steps, index=step)
        assert paced.reaches(step, 7) == (step % 7 == 0 or step == steps)
        assert paced.reaches(step, 7, 0.4) == ((step % 7 == 0 and step >= 0.4 * steps) or step == steps)
        assert paced.done(step) == (step == steps)
        assert paced.end(step) == steps


@given(steps=st.integers(50, 3000), before=st.integers(0, 20), rest=st.integers(1, 40))
def test_a_paced_schedule_ends_in_the_steps_that_it_is_given(steps: int, before: int, rest: int) -> None:
    paced = PacedSchedule(schedule=Schedule(steps=steps, peak=1.0), steps=steps)
    rest = min(rest, steps - before)
    paced.finish_in(rest, index=before)
    assert paced.position(before) == before
    assert paced.end(before) == before + rest
    assert paced.done(before + rest)
    assert not paced.done(before + rest - 1)
    assert paced(before + rest - 1) == pytest.approx(Schedule(steps=steps, peak=1.0)(paced.position(before + rest - 1)))


def test_steps_that_become_faster_stretch_what_is_left_of_the_schedule() -> None:
    """It was hurried while they were slow; of the run's 1,000 steps no more than that are made."""
    paced = PacedSchedule(schedule=Schedule(steps=1000, peak=1.0), steps=1000)
    paced.finish_in(100, index=0)
    assert paced.position(50) == 500
    paced.finish_in(800, index=50)
    assert paced.position(50) == 500
    assert (paced.done(849), paced.done(850)) == (False, True)
    paced.finish_in(5000, index=100)
    assert paced.end(100) == 1000
