from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.distribute.strategy import alone
from hasten.observe.clock import Clock
from hasten.optim.schedule import PacedSchedule, Schedule
from hasten.training.time_limit import TimeLimit

STEPS = 1500
EVERY = 50


@dataclass
class Simulated:
    """A run whose steps and validations take the seconds that they are told to."""

    seconds: float | None
    start_s: float = 10.0
    step_s: list[float] = field(default_factory=lambda: [0.5])
    validation_s: float = 4.0
    reserve_s: float = 3.0
    estimate: float = 8.0
    least: float = 0.0
    """Expected seconds of the shortest validation."""
    has_target: bool = False
    validate_from: float = 0.0
    repeated: float = 0.1
    """Share of a validation that the report's examples take."""
    warm: int = 0
    """Steps before a CUDA graph, which take twenty times as long."""
    taken_s: float = 0.0
    """Seconds of a validation as it was shortened."""
    now: float = 0.0
    steps: int = 0
    validations: int = 0
    first_validation: int = 0
    """Steps before it."""

    def fit(self, network: torch.nn.Module, seconds: float) -> float:
        """The evaluator's: validations are shortened as far as `least`, in truth as much as in the estimate.

        The estimate is right once there was a validation.
        """
        estimate = self.validation_s if self.validations else self.estimate
        expected = min(estimate, max(seconds, self.least * estimate / self.estimate))
        self.taken_s = self.validation_s * expected / estimate
        return expected

    def run(self) -> PacedSchedule:
        self.now, self.taken_s, trained = self.start_s, self.validation_s, 0.0
        paced = PacedSchedule(schedule=Schedule(steps=STEPS, peak=1.0), steps=STEPS)
        train = SimpleNamespace(
            budget=self.seconds, validate_every=EVERY, validate_from=self.validate_from,
            target=0.9 if self.has_target else None,
        )  # fmt: skip
        step = SimpleNamespace(strategy=alone(), device=torch.device("cpu"))
        captured = SimpleNamespace(settled=self.warm == 0)
        parts: Any = SimpleNamespace(
            train=train, step=step, paced=paced, validated=torch.nn.Identity(), captured=captured
        )
        evaluator: Any = SimpleNamespace(repeated=self.repeated, fit=self.fit)
        limit = TimeLimit(parts, evaluator, lambda: self.now, self.reserve_s)
        limit.require(Clock())
        while True:
            spent = self.step_s[self.steps % len(self.step_s)] * (1 if captured.settled else 20)
            self.now, trained, self.steps = self.now + spent, trained + spent, self.steps + 1
            captured.settled = self.steps >= self.warm
            limit.after_step(self.steps, trained)
            ends = limit.over or paced.done(self.steps)
            if ends or (paced.reaches(self.steps, EVERY, self.validate_from) and limit.allows_validation(trained)):
                self.first_validation = self.first_validation or self.steps
                # Of ten cases, as many as there is room for, and one at least.
                seconds = min(self.taken_s, max(limit.room(), self.taken_s / 10))
                self.now += seconds
                self.validations += 1
                limit.validated(seconds)
                ends |= limit.expired()
            if ends:
                break
        self.now += 0.1 * self.taken_s + self.reserve_s + 0.5
        return paced


def test_without_a_limit_nothing_is_paced() -> None:
    run = Simulated(seconds=None)
    paced = run.run()
    assert (run.steps, run.validations, paced.pace) == (STEPS, STEPS // EVERY, 1.0)


@settings(max_examples=60)
@given(
    seconds=st.floats(60, 3000), step_s=st.lists(st.floats(0.02, 2.0), min_size=1, max_size=9),
    validation_s=st.floats(0.1, 8.0), estimate=st.floats(0.1, 20.0), has_target=st.booleans(),
)  # fmt: skip
def test_a_run_ends_in_its_time_with_an_annealed_rate(
    seconds: float, step_s: list[float], validation_s: float, estimate: float, has_target: bool
) -> None:
    run = Simulated(seconds=seconds, step_s=step_s, validation_s=validation_s, estimate=estimate, has_target=has_target)
    paced = run.run()
    longest = max(step_s)
    assert run.now <= seconds + longest + 0.01 * seconds
    assert run.validations >= 1
    assert paced.position(run.steps) >= 0.8 * STEPS
    if seconds > 200:
        unhurried = STEPS * sum(step_s) / len(step_s)
        assert run.now >= 0.7 * min(seconds, unhurried)


def test_more_is_kept_for_the_end_beside_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, busy = Simulated(seconds=100.0, step_s=[0.1]), Simulated(seconds=100.0, step_s=[0.1])
    quiet.run()
    monkeypatch.setattr("hasten.training.time_limit.slowed", lambda: 2.0)
    busy.run()
    # Twice the time of what is written, which takes as long as before here.
    assert busy.now == pytest.approx(quiet.now - (0.9 + busy.reserve_s), abs=0.3)


def test_the_time_of_validations_that_are_left_out_is_trained() -> None:
    """Of 30 validations the first 14 are left out; the limit leaves no time for all of them."""
    run = Simulated(seconds=10.0 + STEPS * 0.1 + 17 * 4.0 + 5.0, step_s=[0.1], estimate=4.0, validate_from=0.5)
    paced = run.run()
    assert (run.steps, run.validations) == (STEPS, 16)
    assert paced.pace == 1.0


def test_validations_take_a_small_share_or_a_half_where_a_target_waits_for_them() -> None:
    run = Simulated(seconds=300.0, step_s=[0.2], validation_s=10.0)
    run.run()
    assert (run.validations - 1) * run.taken_s <= 0.04 * 300
    waiting = Simulated(seconds=300.0, step_s=[0.2], validation_s=10.0, has_target=True)
    waiting.run()
    assert waiting.validations > run.validations
    assert waiting.now <= 303


def test_no_time_to_train_is_an_error_that_says_where_it_went_and_how_much_is_enough() -> None:
    with pytest.raises(ValueError, match=r"train.budget=12s: .*no time .*taken 10 s.*Give at least 16 s"):
        Simulated(seconds=12.0).run()
    enough = Simulated(seconds=15.0)
    enough.run()
    assert (enough.steps > 1, enough.validations) == (True, 1)


@pytest.mark.parametrize("speeds", [(0.4, 0.05), (0.05, 0.4)])
def test_steps_that_become_faster_or_slower_change_the_schedule_on_the_way(speeds: tuple[float, float]) -> None:
    """Of more steps than fit: the run ends at its limit, within 3 %, at the end of its schedule."""
    before, after = speeds
    run = Simulated(seconds=120.0, step_s=[before] * 100 + [after] * 2000, validation_s=1.0, estimate=2.0)
    paced = run.run()
    assert 0.97 * 120 <= run.now <= 120
    assert paced.position(run.steps) > 0.98 * STEPS


def test_the_first_validation_comes_at_half_of_the_time_at_the_latest() -> None:
    """An expected 2.8 s are more than the share of all validations; in truth one takes 0.14 s."""
    run = Simulated(seconds=60.0, step_s=[0.2], validation_s=1.0, estimate=20.0)
    run.run()
    assert run.validations >= 2
    assert run.first_validation * 0.2 < 0.75 * (60 - 10)
    assert run.now > 0.97 * 60


def test_a_validation_that_was_expected_to_take_much_longer_is_tried_at_half_of_the_time() -> None:
    """As of volumes that are mostly background, and of so few cases that all of them are the report's examples."""
    run = Simulated(
        seconds=60.0, start_s=15.0, step_s=[0.2], validation_s=1.4, estimate=6.6, least=6.6, reserve_s=2.3, repeated=1.0
    )
    run.run()
    assert run.validations == 2
    assert run.first_validation * 0.2 < 0.75 * (60 - 15)
    assert 0.96 * 60 < run.now <= 60


def test_a_validation_covers_more_once_the_first_one_has_told_how_long_it_takes() -> None:
    run = Simulated(seconds=120.0, step_s=[0.2], validation_s=4.0, estimate=60.0)
    run.run()
    assert run.validations >= 2
    assert run.taken_s == 4.0  # 0.44 s the first one: 6.6 of what was thought to take 60
    assert 0.96 * 120 < run.now <= 120
