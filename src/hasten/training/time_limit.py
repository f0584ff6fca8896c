"""Enforces `train.budget`: the rest of the schedule, validations and the closing work fit into the remaining time.

A limit that only stops a run leaves a learning rate that was never annealed. Here the time that a step takes is
measured as the run goes, and the schedule is paced so that it ends when the time does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hasten.distribute.consensus import broadcast_from_rank0
from hasten.observe.clock import Clock
from hasten.optim.schedule import multiples_before
from hasten.runtime.core_follower import slowed
from hasten.runtime.device import synchronize
from hasten.training.components import Evaluator, LoopComponents

_CLOSING_S = 1.2
"""Seconds after the last validation for checkpoints, trackers and summary.json, on a quiet machine."""
_LONGEST, _TARGET_LONGEST = 0.06, 0.25
"""Shares of the time at the first step that a validation may take, without and with a target; it is cut to that."""
_VALIDATION_SHARE, _TARGET_SHARE = 0.04, 0.5
"""Shares of the time since the first step that validations before the last one may take, without and with a target."""
_LAST_VALIDATION = 1.1
_FIRST_VALIDATION = 1.25
"""Times the seconds of the previous validation, and where there was none of an expected one, that are reserved for the
last: it decides what the end was worth."""
_LOOK_S = 1.0
"""Seconds between two checks of the clock."""


class TimeLimit:
    """What still fits into a run's time. Without train.budget everything fits and nothing is paced.

    Ranks decide together: rank 0's clock counts. All ranks make the same calls at the same steps.
    """

    def __init__(
        self, components: LoopComponents, evaluator: Evaluator, time_s: Callable[[], float], reserve_s: float
    ) -> None:
        """time_s: seconds of the run so far. reserve_s: those that the caller needs after the last validation."""
        train, strategy = components.train, components.step.strategy
        self.seconds, self.validate_every, self.paced = train.budget, train.validate_every, components.paced
        self.validate_from = train.validate_from
        self.time_s, self.reserve_s = time_s, reserve_s
        self.captured = components.captured
        self.world, self.device = strategy.world, components.step.device
        self.validation_s = 0.0
        """Seconds of a validation: expected, then of the last one."""
        self._evaluator, self._whole = evaluator, lambda: strategy.whole(components.validated)
        if self.seconds is not None:
            longest = _LONGEST if train.target is None else _TARGET_LONGEST
            self._longest = longest * max(0.0, self.left_s - reserve_s)
            self.validation_s = evaluator.fit(self._whole(), self._longest)
        self._half_s, self._looked_again = self.left_s / 2, False
        self.over = False
        """Whether no further step fits."""
        self._all_fits = True
        """Whether the rest of the schedule and its validations fit as they are."""
        self._step_s = 0.0
        self._validating_s, self._safety = 0.0, _FIRST_VALIDATION
        self._share = _VALIDATION_SHARE if train.target is None else _TARGET_SHARE
        self._due = self._looks = 0
        self._mark: tuple[int, float] | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the limit; infinite without one."""
        return math.inf if self.seconds is None else self.seconds - self.time_s()

    @property
    def closing_s(self) -> float:
        """Seconds needed after the last validation."""
        return self._written_s + self._evaluator.repeated * self.validation_s

    @property
    def _written_s(self) -> float:
        """Seconds for all that is written at the end, by one thread, beside the programs that run now."""
        return slowed() * (_CLOSING_S + self.reserve_s)

    @property
    def last_validation_s(self) -> float:
        """Seconds that are reserved for the last validation."""
        return self._safety * self.validation_s

    @property
    def _is_untimed_at_half(self) -> bool:
        """Whether half of the time is over, and no validation has told how long one takes."""
        return self._safety == _FIRST_VALIDATION and self.left_s < self._half_s

    def require(self, clock: Clock) -> None:
        """Raise ValueError if starting took all the time there is. clock: with the spans of the start."""
        if broadcast_from_rank0(self.world, self.expired()):
            least = self.time_s() + self.closing_s + self.last_validation_s + _LOOK_S
            phases = ", ".join(f"{name.replace('_', ' ')} {seconds:.0f} s" for name, seconds in clock.seconds.items())
            raise ValueError(
                f"train.budget={self.seconds:g}s: no time is left to train. The run has taken {self.time_s():.0f} s, "
                f"{clock.elapsed:.0f} s of it to start this process ({phases}), and {self.closing_s:.0f} s are kept "
                f"for what follows the training. Give at least {math.ceil(least)} s; prepared cases stay in the cache, "
                "so the next start is faster"
            )

    def after_step(self, step: int, trained_s: float) -> None:
        """Pace the schedule to the remaining time. trained_s: seconds spent in all steps of this process so far."""
        if self.seconds is None or step < self._due:
            return
        synchronize(self.device)  # kernels that only wait in the queue have cost no time yet
        if not self._looked_again and broadcast_from_rank0(self.world, self._is_untimed_at_half):
            # A second look, at the speed that the machine has now.
            self.validation_s, self._looked_again = self._evaluator.fit(self._whole(), self._longest), True
        steps, self._due = broadcast_from_rank0(self.world, self._fitting(step, trained_s))
        if steps is None:
            return
        self.over = steps < 1
        self.paced.finish_in(steps, index=step)

    def _fitting(self, step: int, trained_s: float) -> tuple[int | None, int]:
        """Steps that still fit, None before a step has been timed, and the step of the next check."""
        if self._mark is None:
            # The first step is no measure of the others: libraries are loaded and kernels chosen in it. Nor are those
            # up to a CUDA graph.
            if self.captured is None or self.captured.settled:
                self._mark = (step, trained_s)
            return (None if self.left_s > self.closing_s else 0), step + 1
        first, before = self._mark
        measured = max(1e-9, (trained_s - before) / (step - first))
        # A mean of the first measurements, then a moving average: a single step says little.
        self._looks += 1
        self._step_s += max(0.25, 1 / self._looks) * (measured - self._step_s)
        self._mark = (step, trained_s)
        remaining_s = self.left_s - self.closing_s - self.last_validation_s
        every = self.validate_every
        left_out = multiples_before(self.validate_from, self.paced.steps, every)
        passed = max(int(self.paced.position(step) // every), left_out)
        before_last = math.ceil(self.paced.steps / every) - 1 - passed
        validations = before_last * self.validation_s
        self._all_fits = remaining_s - validations >= self._step_s * (self.paced.steps - self.paced.position(step))
        remaining_s -= validations if self._all_fits else min(validations, self._share * max(0.0, remaining_s))
        after = min(int(_LOOK_S / self._step_s), 2 * (step - first))
        return math.floor(remaining_s / self._step_s), step + max(1, after)

    def allows_validation(self, trained_s: float) -> bool:
        """Whether a validation before the last one fits: beside the last one, steps of the same time between them, and
        as a share of the time so far.

        The share does not matter where there is time for the whole schedule with all its validations. From half of the
        time on, the first one only has to fit beside the last: it tells what that needs, for which too much is kept
        while nobody knows, as windows of background cost nothing.
        """
        if self.seconds is None:
            return True
        validating_s = self._validating_s + self.validation_s
        in_share = validating_s <= self._share * (validating_s + trained_s)
        fits = self.left_s - self.closing_s > 3 * self.validation_s and (self._all_fits or in_share)
        fits |= self._is_untimed_at_half and self.room() > 2 * self.validation_s
        return broadcast_from_rank0(self.world, fits)

    def validated(self, seconds: float, *, last: bool = False) -> None:
        """A validation took this long. The first one tells what the following ones can cover, unless it is the last."""
        self._validating_s += seconds
        self.validation_s = seconds
        if self.seconds is not None and self._safety == _FIRST_VALIDATION and not last:
            self.validation_s = self._evaluator.fit(self._whole(), self._longest)
        self._safety = _LAST_VALIDATION

    def room(self) -> float:
        """Seconds that are left for a validation under way, beside what must follow."""
        return self.left_s - self._written_s

    def expired(self) -> bool:
        """Whether only what must follow still fits."""
        return self.room() <= 0
