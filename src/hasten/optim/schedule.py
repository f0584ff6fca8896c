"""Learning rates as pure functions of the 0-based step, so that a resumed run needs nothing but its step.

`one_cycle` is a whole schedule. The other shapes are factors after a linear rise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["one_cycle", "cosine", "poly", "step", "constant"]
FIRST = 0.04
"""Share of the peak at which a rise starts."""
_POWER = 0.9
"""Exponent of kind `poly`, as nnU-Net's."""


def one_cycle(step: float, *, steps: int, peak: float, warmup_fraction: float) -> float:
    """Learning rate of a 0-based step: a linear rise from peak / 25, then a cosine fall to peak / 1000.

    As L. Smith's one-cycle policy with one momentum.
    """
    warmup = max(1, round(steps * warmup_fraction))
    if step < warmup:
        return peak * (0.04 + 0.96 * step / warmup)
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    return peak * (0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * progress)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """`schedule(step)` is the learning rate of a 0-based step.

    It rises linearly over the first `warmup_fraction` of the steps and then follows `kind`. Beyond `steps` it stays at
    its last value. Raises ValueError for invalid numbers.
    """

    kind: Kind = "one_cycle"
    steps: int
    """Steps of the whole run."""
    peak: float
    """Learning rate at the end of the rise."""
    warmup_fraction: float = 0.05
    first: float = FIRST
    """Share of the peak at step 0, if there is a rise. one_cycle has its own."""
    milestones: tuple[tuple[float, float], ...] = ()
    """Pairs (share of all steps, factor) of kind `step`: from there on, the rate is peak * factor."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a schedule of {self.steps} steps; it needs at least 1")
        if not 0 <= self.warmup_fraction < 1:
            raise ValueError(f"warmup_fraction is {self.warmup_fraction}; it must be at least 0 and below 1")
        shares = [share for share, _ in self.milestones]
        if shares != sorted(shares) or any(not 0 <= share <= 1 or factor < 0 for share, factor in self.milestones):
            raise ValueError(
                f"milestones are {self.milestones}; each is (share of the steps from 0 to 1, factor of at least 0), "
                "and the shares rise"
            )

    def __call__(self, step: float) -> float:
        if self.kind == "one_cycle":
            return one_cycle(step, steps=self.steps, peak=self.peak, warmup_fraction=self.warmup_fraction)
        warmup = self.warmup
        if step < warmup:
            return self.peak * (self.first + (1 - self.first) * step / warmup)
        progress = min(1.0, (step - warmup) / max(1, self.steps - warmup))
        match self.kind:
            case "cosine":
                return self.peak * (0.5 * (1 + math.cos(math.pi * progress)))
            case "poly":
                return self.peak * float((1.0 - progress) ** _POWER)
            case "step":
                share = min(1.0, step / self.steps)
                return self.peak * next((factor for start, factor in reversed(self.milestones) if share >= start), 1.0)
            case "constant":
                return self.peak

    @property
    def warmup(self) -> int:
        """Steps below the peak at the start."""
        steps = round(self.steps * self.warmup_fraction)
        return max(1, steps) if self.kind == "one_cycle" else min(steps, self.steps - 1)


@dataclass(kw_only=True, slots=True)
class PacedSchedule:
    """A schedule that can end in fewer steps than it has, and still passes through its whole shape.

    `paced(index)` is the learning rate of 0-based step `index`. It is the schedule's own until `finish_in` changes the
    pace of the rest, so that a run with a time limit ends with an annealed learning rate.
    """

    schedule: Callable[[float], float]
    steps: int
    """Length of the schedule."""
    pace: float = 1.0
    """Steps of the schedule per step of the run."""
    _step: int = 0
    _position: float = 0.0
    """Position of `_step` in the schedule; the steps after it proceed from there at `pace`."""
    _before: float = -1.0
    """Position of the step before `_step`."""

    def __call__(self, index: int) -> float:
        return self.schedule(self.position(index))

    def position(self, index: int) -> float:
        """The step of the schedule that 0-based step `index` of the run takes.

        Of the steps before the last `finish_in` only the very last is known.
        """
        if index < self._step:
            return self._before
        return self._position + (index - self._step) * self.pace

    def start_at(self, index: int, position: float) -> None:
        """Continue from step `index` at this position of the schedule, at the schedule's own pace."""
        self._before = self.position(index - 1)
        self._step, self._position, self.pace = index, position, 1.0

    def finish_in(self, steps: int, *, index: int) -> None:
        """Finish the schedule in `steps` steps from step `index` on, or as soon as the run has made `self.steps`."""
        self.start_at(index, self.position(index))
        if self.steps > index:
            self.pace = (self.steps - self._position) / max(1, min(steps, self.steps - index))

    def reaches(self, step: int, every: int, start: float = 0.0) -> bool:
        """Whether the `step`-th step (1-based) reaches a multiple of `every` steps of the schedule, or its end.

        start: share of the schedule before which multiples do not count.
        """
        multiple = self.position(step) // every
        counts = multiple * every >= start * self.steps
        return (counts and multiple > self.position(step - 1) // every) or self.done(step)

    def done(self, step: int) -> bool:
        """Whether the schedule is complete after `step` steps."""
        return self.position(step) >= self.steps - 1e-6

    def end(self, step: int) -> int:
        """Steps of the whole run at the present pace, as of `step` steps."""
        return step + max(0, math.ceil((self.steps - self.position(step)) / self.pace - 1e-6))


def multiples_before(share: float, steps: int, every: int) -> int:
    """How many multiples of `every` steps lie below this share of `steps`."""
    return max(0, math.ceil(share * steps / every) - 1)


def scaled_rate(rate: float, batch_size: int, reference_batch: int) -> float:
    """The linear scaling rule: a rate that was good at `reference_batch`, for batches of `batch_size`.

    P. Goyal et al., "Accurate, large minibatch SGD", arXiv:1706.02677. The rule holds for SGD with momentum once the
    first epochs are over: where the rate grows, let it rise from the unscaled one (`warmup_start`) over about 5 epochs.
    Adaptive optimizers often want less, the square root of the ratio; LARS and LAMB were made to need little of it.
    """
    if batch_size < 1 or reference_batch < 1:
        raise ValueError(f"batch sizes are {batch_size} and {reference_batch}; each must be at least 1")
    return rate * batch_size / reference_batch


def warmup_start(batch_size: int, reference_batch: int) -> float:
    """Share of the scaled rate at which its rise starts: at the unscaled rate, or at `FIRST` where that is no rise."""
    return reference_batch / batch_size if batch_size > reference_batch else FIRST


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every parameter group this learning rate, in place where it is a tensor (as a captured step needs it).

    A group with an `lr_scale` (of `hasten.optim.groups.scale_rates`) gets that much of it.
    """
    for group in optimizer.param_groups:
        value = rate * group.get("lr_scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
