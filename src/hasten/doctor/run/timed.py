"""Steps of a run with the times of their parts, and the split of its wall time that follows from all measurements."""

from __future__ import annotations

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hasten.doctor.finding import DOUBLED
from hasten.doctor.run.assemble import ColdCache
from hasten.doctor.run.probes import Arms, PeriodicCosts
from hasten.doctor.time_split import PARTS, Split
from hasten.doctor.training import TrainStep, synchronize
from hasten.feed.feed import Feed

_WARMUP = 2


@dataclass(slots=True)
class Marks:
    """Measures named intervals: by the host's clock on a CPU, on the device's queue on a GPU."""

    device: torch.device
    _events: list[tuple[str, Any]] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """The time since the previous mark belongs to `name`."""
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append((name, event))
        else:
            self._events.append((name, time.perf_counter()))

    def begin(self) -> None:
        """Forget the marks so far."""
        self._events = []
        self.mark("begin")

    def seconds(self) -> dict[str, float]:
        """Seconds by name; waits for the device. The first mark only starts the clock."""
        totals: dict[str, float] = defaultdict(float)
        synchronize(self.device)
        for (_, before), (name, after) in zip(self._events, self._events[1:], strict=False):
            totals[name] += before.elapsed_time(after) / 1e3 if self.device.type == "cuda" else after - before
        return dict(totals)


class _TimedUpdate:
    """Stands in for a step's `Update`."""

    def __init__(self, update: Any, marks: Marks) -> None:
        self._update, self._marks = update, marks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)

    def backward(self, loss: Tensor) -> None:
        self._update.backward(loss)
        self._marks.mark("backward")

    def apply(self, index: int) -> None:
        self._update.apply(index)
        self._marks.mark("optimizer")


class _TimedStep(TrainStep):
    __slots__ = ()

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        loss = TrainStep.forward(self, image, label)
        self.update._marks.mark("forward")  # type: ignore[attr-defined]
        return loss


def timed_step(step: TrainStep, marks: Marks) -> TrainStep:
    """A step like `step` that marks where forward, backward and optimizer end."""
    fields = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
    return _TimedStep(**{**fields, "update": _TimedUpdate(step.update, marks)})


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSteps:
    """Mean seconds of a step and of its marked parts: batch, forward, backward, optimizer, around."""

    steps: int
    step_s: float
    marks: dict[str, float]

    def part(self, *names: str) -> float:
        return sum(self.marks.get(name, 0.0) for name in names)


def run_steps(step: TrainStep, feed: Feed, *, steps: int, seconds: float, last: int) -> TimedSteps:
    """Train at most `steps` steps after the warm-up; fewer, but 2, if `seconds` are over. last: steps of the run."""
    marks = Marks(step.device)
    call = timed_step(step, marks)
    start, index = time.perf_counter(), 0
    with closing(iter(feed)) as batches:
        while index - _WARMUP < steps and (index - _WARMUP < 2 or time.perf_counter() - start < seconds):
            if index == _WARMUP:
                synchronize(step.device)
                begin = time.perf_counter()
                marks.begin()
            batch = next(batches)
            marks.mark("batch")
            call(batch["image"], batch["label"], min(index, last - 1))
            marks.mark("around")
            index += 1
        synchronize(step.device)
    count = index - _WARMUP
    step_s = (time.perf_counter() - begin) / count
    return TimedSteps(
        steps=count, step_s=step_s, marks={name: value / count for name, value in marks.seconds().items()}
    )


def feed_alone(feed: Feed, *, steps: int, seconds: float, device: torch.device) -> float:
    """Mean seconds of a batch without a step, after a warm-up batch."""
    with closing(iter(feed)) as batches:
        next(batches)
        return mean_seconds(lambda _: next(batches), steps=steps, seconds=seconds, device=device)


def mean_seconds(call: Callable[[int], object], *, steps: int, seconds: float, device: torch.device) -> float:
    """Mean time of `call(0)`, `call(1)`, ...: at most `steps` calls; fewer, but at least 2, once `seconds` are over."""
    synchronize(device)
    begin, count = time.perf_counter(), 0
    while count < steps and (count < 2 or time.perf_counter() - begin < seconds):
        call(count)
        count += 1
    synchronize(device)
    return (time.perf_counter() - begin) / count


# The split


def split_of(
    ran: TimedSteps,
    *,
    inline: bool,
    periodic: PeriodicCosts | None = None,
    cold: ColdCache | None = None,
    arms: Arms | None = None,
    feed_alone_s: float | None = None,
    copy_s: float = 0.0,
    busy_s: float | None = None,
    captured_s: float | None = None,
    cuda: bool = False,
) -> Split:
    """Seconds a step by part, which add up to `step_s`.

    inline: the training device makes its batches itself. copy_s: of a batch to the device. busy_s: of a step in which a
    GPU computes. captured_s: a step as a CUDA graph, whose phases are taken to be those of the uncaptured one.
    """
    arms = arms or Arms()
    parts = {name: ran.part(name) for name in ("forward", "backward", "optimizer")}
    copies = 0.0 if inline else min(ran.part("batch"), copy_s)
    parts |= {"sample" if inline else "wait": ran.part("batch") - copies, "host_to_device": copies}
    compute = parts["forward"] + parts["backward"]
    launch_s = _launch_seconds(ran, arms, busy_s, cuda=cuda)
    if compute > 0:
        parts |= {name: parts[name] * (1 - launch_s / compute) for name in ("forward", "backward")}
    parts["overhead"] = ran.part("around") + launch_s
    # The parts add up to a step: what is left over is the interpreter's.
    total = sum(parts.values())
    if total > ran.step_s:
        parts = {name: value * ran.step_s / total for name, value in parts.items()}
    else:
        parts["overhead"] += ran.step_s - total
    if captured_s is not None:
        parts = {name: value * captured_s / ran.step_s for name, value in parts.items()}
    if periodic is not None:
        parts |= {"validation": periodic.validation_step_s, "checkpoint": periodic.checkpoint_step_s}
        if cold is not None:  # once, spread over the run's steps
            parts |= {"read": cold.read_total_s / periodic.steps, "prepare": cold.prepare_total_s / periodic.steps}
    return Split(
        steps=ran.steps,
        step_s=sum(parts.values()),
        parts={name: parts.get(name, 0.0) for name in PARTS},
        fixed_batch_s=arms.seconds.get("fixed"),
        feed_alone_s=feed_alone_s,
        doubled=arms.doubled,
    )


def _launch_seconds(ran: TimedSteps, arms: Arms, busy_s: float | None, *, cuda: bool) -> float:
    """Seconds of forward and backward that go into launches and don't grow with the voxels.

    On a CPU the smaller estimate of two experiments, as a busy machine distorts either alone. If doubling the batch is
    nearly free, that estimate is used, but limited to what one small patch takes, which has the same fixed costs.
    """
    compute, optimizer = ran.part("forward", "backward"), ran.part("optimizer")
    if cuda:
        return 0.0 if busy_s is None else min(compute, max(0.0, compute + optimizer - busy_s))
    by_size = arms.launches(compute)
    fixed, doubled = arms.seconds.get("fixed"), arms.doubled
    if fixed is None or doubled is None:
        return by_size
    by_doubling = min(compute, max(0.0, (2 - doubled) * fixed - optimizer))
    return min(by_doubling, arms.seconds.get("small", compute) if doubled < DOUBLED else by_size)
