"""The learning-rate range test: train with a rising rate until the loss diverges, then restore everything.

L. Smith, "Cyclical learning rates for training neural networks", arXiv:1506.01186; smoothing and stop as in MONAI's
LearningRateFinder.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hasten.optim.schedule import set_rate


class Stateful(Protocol):
    """Anything whose state a step changes, such as a scaler, a scheduler, a feed or an average."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RangeTest:
    """Results of a range test, step by step."""

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    """Losses as the steps returned them; a last one may not be finite."""
    smoothed: tuple[float, ...]
    diverged: bool
    """Whether it stopped before its last rate."""
    steepest: float
    """The rate at which the smoothed loss fell fastest, before its minimum: a good peak for a schedule."""
    tenth: float
    """A tenth of the rate at the smoothed loss's minimum: the careful choice."""


def rising(*, start: float, end: float, steps: int) -> Callable[[int], float]:
    """The rate of a 0-based step of a range test: from `start` to `end` by an equal factor each step."""
    if not 0 < start < end:
        raise ValueError(f"a range test from {start:g} to {end:g}; it needs 0 < start < end")
    if steps < 3:
        raise ValueError(f"a range test of {steps} steps; it needs at least 3")
    return lambda step: start * (end / start) ** (step / (steps - 1))


def range_test(
    step: Callable[[int], float | Tensor],
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    start: float = 1e-6,
    end: float = 1.0,
    steps: int = 100,
    smoothing: float = 0.2,
    divergence: float = 5.0,
    also: Sequence[Stateful] = (),
) -> RangeTest:
    """Run `step(0)`, `step(1)`, ... with a rising learning rate in every group of the optimizer.

    step: one whole training step (forward, backward, optimizer) that returns its loss, a number or (). One that sets
    the rate by itself sets `rising(start=start, end=end, steps=steps)`. The test ends early where a loss is not finite,
    or where the smoothed loss (of which each new one is the share `smoothing`) exceeds `divergence` times the smallest.

    Weights, buffers, gradients and training modes of the network, the optimizer, `also`, and the random states of
    python, numpy and torch are restored exactly, also if a step raises. ValueError if fewer than
    three steps have a finite loss.
    """
    if not 0 < smoothing <= 1:
        raise ValueError(f"smoothing is {smoothing}; it must be above 0 and at most 1")
    if divergence <= 1:
        raise ValueError(f"divergence is {divergence}; it must be above 1")
    rate = rising(start=start, end=end, steps=steps)
    losses: list[float] = []
    smoothed: list[float] = []
    with restored(network, optimizer, also):
        for index in range(steps):
            set_rate(optimizer, rate(index), index)
            losses.append(float(step(index)))
            if not math.isfinite(losses[-1]):
                break
            before = smoothed[-1] if smoothed else losses[-1]
            smoothed.append(smoothing * losses[-1] + (1 - smoothing) * before)
            best = min(smoothed)
            if smoothed[-1] > best + (divergence - 1) * abs(best):
                break
    steepest, lowest = _suggestions(smoothed, start)
    return RangeTest(
        rates=tuple(rate(index) for index in range(len(losses))), losses=tuple(losses), smoothed=tuple(smoothed),
        diverged=len(losses) < steps or not math.isfinite(losses[-1]),
        steepest=rate(steepest), tenth=rate(lowest) / 10,
    )  # fmt: skip


def _suggestions(smoothed: Sequence[float], start: float) -> tuple[int, int]:
    """The steps of the steepest fall and of the minimum. The rates are even in their logarithm, so steps are too."""
    if len(smoothed) < 3:
        raise ValueError(
            f"the loss was finite for {len(smoothed)} steps from a learning rate of {start:g}: start lower"
        )
    lowest = int(np.argmin(smoothed))
    return int(np.argmin(np.gradient(np.asarray(smoothed))[: lowest + 1])), lowest


@contextmanager
def restored(network: nn.Module, optimizer: torch.optim.Optimizer, also: Sequence[Stateful] = ()) -> Iterator[None]:
    """Context manager that restores everything bit for bit after its body has trained; tensors keep their memory."""
    tensors = [(each, each.detach().clone()) for each in (*network.parameters(), *network.buffers())]
    gradients = [(each, None if each.grad is None else each.grad.clone()) for each in network.parameters()]
    modes = [(module, module.training) for module in network.modules()]
    rates = [group["lr"] for group in optimizer.param_groups]
    states = [(each, copy.deepcopy(each.state_dict())) for each in (optimizer, *also)]
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    host, numpy, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in tensors:
                tensor.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, training in modes:
            module.training = training
        for each, state in states:
            each.load_state_dict(state)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            if isinstance(rate, Tensor):  # the same tensor again: a captured step reads it
                group["lr"] = rate.copy_(group["lr"])
        random.setstate(host)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(torchs)
        if cards:
            torch.cuda.set_rng_state_all(cards)
