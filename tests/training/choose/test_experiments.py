from __future__ import annotations

import math

import pytest

from hasten.observe import clock as clocks
from hasten.observe.clock import Clock
from hasten.training.choose.experiments import Experiments


class FakeTime:
    """Stands in for the `time` of clocks."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return int(1e9 * self.now)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(clocks, "time", fake)
    return fake


def test_all_experiments_together_take_a_tenth_of_the_limit(time: FakeTime) -> None:
    experiments = Experiments(Clock(), 100.0)
    assert experiments.refusal(9.9, math.inf) == ""
    with experiments.running():
        time.now += 6.0
        with experiments.running():  # nested: counted once
            time.now += 1.0
    assert (experiments.seconds, experiments.left_s) == (7.0, 3.0)
    assert experiments.refusal(2.9, math.inf) == ""
    assert "3 s are left for experiments" in experiments.refusal(3.1, math.inf)
    with experiments.running():
        time.now += 9.0
    assert experiments.left_s == 0.0


@pytest.mark.parametrize(("saves", "allowed"), [(29.9, False), (30.0, True), (-1.0, False)])
@pytest.mark.parametrize("limit", [None, 1000.0])
def test_an_experiment_is_likely_to_save_three_times_what_it_costs(
    time: FakeTime, limit: float | None, saves: float, allowed: bool
) -> None:
    assert (Experiments(Clock(), limit).refusal(10.0, saves) == "") is allowed


def test_without_a_limit_time_does_not_end(time: FakeTime) -> None:
    experiments = Experiments(Clock())
    with experiments.running():
        time.now += 1e6
    assert (experiments.left_s, experiments.run_s) == (math.inf, math.inf)
