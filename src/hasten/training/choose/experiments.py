"""The account of a run's experiments: what finds out how to train asks here first, so that the time goes to training.

An experiment is whatever is no step, validation, reading or writing: timing networks and number formats, compiling,
comparing. docs/engine.md, "A time limit", says how the account is used.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

from hasten.observe.clock import Clock
from hasten.runtime.variant import VariantTimes

SHARE = 0.1
"""Largest share of a run's time limit that all experiments take together."""
PAYS = 3.0
"""An experiment is made where it is likely to save this many times its own seconds."""


class Experiments:
    """The seconds that experiments took, and whether a further one may begin. Without a limit, whether it pays."""

    def __init__(self, clock: Clock, limit_s: float | None = None) -> None:
        """clock: of the run, which `limit_s` counts on."""
        self._clock, self._spent, self._limit_s = clock, Clock().span("experiments"), limit_s
        self.timed: dict[str, VariantTimes] = {}
        """What was timed in this run, by network and shape, also where it was too doubtful to be kept for others."""

    def tell(self, text: str) -> None:
        """Say what the run is about to try."""
        self._clock.tell(text)

    @property
    def seconds(self) -> float:
        """Seconds that experiments have taken, those under way included."""
        return self._spent.seconds()

    @property
    def run_s(self) -> float:
        """Seconds until the run's limit; infinite without one."""
        return self._clock.left(self._limit_s)

    @property
    def left_s(self) -> float:
        """Seconds that experiments may still take; infinite without a limit."""
        return math.inf if self._limit_s is None else max(0.0, min(SHARE * self._limit_s - self.seconds, self.run_s))

    def running(self) -> AbstractContextManager[None]:
        """Counts the seconds of the block, once where blocks are nested."""
        return self._spent

    def refusal(self, cost_s: float, saves_s: float) -> str:
        """Why no experiment may begin that takes `cost_s` and is likely to save `saves_s`; empty where it may."""
        if saves_s < PAYS * cost_s:
            saves = f"about {max(0.0, saves_s):.0f} s"
            return f"it would take about {cost_s:.0f} s and save {saves}, not {PAYS:g} times as much"
        if cost_s > self.left_s:
            left = f"{self.left_s:.0f} s are left for experiments, which get {SHARE:.0%} of the run's time"
            return f"it would take about {cost_s:.0f} s, and {left}"
        return ""
