"""Measurements of a run: timed steps and the split of their time, a fixed batch, work between the steps."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import stages_of
from hasten.augment.program import Segment
from hasten.devices import kind_of
from hasten.doctor.time_split import PARTS, Split
from hasten.doctor.training import (
    RunComponents,
    TrainStep,
    compared,
    out_of_memory,
    save_checkpoint,
    synchronize,
    validate_some,
)
from hasten.feed.feed import Feed
from hasten.observe.compare import compare
from hasten.optim.schedule import multiples_before

Batch = tuple[Tensor, Tensor]
_HOPELESS = 20.0
"""An arm that is this many times slower than the fastest one isn't timed again."""
_ROUNDS = 12
"""Batches, at most, that each operation is timed with."""


def first_batch(components: RunComponents, first: int = 0) -> Batch:
    """A copy of a batch, which no later batch overwrites. first: its 0-based step."""
    with closing(iter(Feed(components.program, first=first, last=first + 1))) as batches:
        batch = next(batches)
        return batch["image"].clone(), batch["label"].clone()


def fixed_and_doubled(components: RunComponents, batch: Batch, *, seconds: float) -> tuple[float, float | None]:
    """Median seconds of a step on one batch, interleaved with steps on twice its samples, and the ratio of both.

    None where the network is compiled, which another shape would do anew, or where twice the samples do not fit.
    """
    step, (image, label) = components.step, batch
    arms: dict[str, Callable[[], object]] = {"fixed": lambda: step(image, label, 0)}
    if step.network is step.update.weights:
        twice = (torch.cat([image, image]), torch.cat([label, label]))
        arms["doubled"] = lambda: _or_endless(lambda: step(*twice, 0))
    comparison = compared(arms, step.device, base="fixed", seconds=seconds, hopeless=_HOPELESS)
    fixed_s = comparison.median("fixed")
    ratio = comparison.median("doubled") / fixed_s if "doubled" in arms else math.inf
    return fixed_s, ratio if math.isfinite(ratio) else None


def _or_endless(call: Callable[[], object]) -> object:
    """What `call` returns; an infinite time where memory does not suffice."""
    try:
        return call()
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        return math.inf


# Augmentation, operation by operation


def operation_costs(components: RunComponents, *, seconds: float) -> dict[str, float]:
    """Seconds of a batch by the operation that would save them, and "batch": the whole.

    Operations of one class count as one.
    """
    segment = components.program.latest
    names = dict.fromkeys(type(op).__name__ for op in segment.chain.ops if getattr(op, "prob", 0.0) > 0)
    arms = {"batch": segment} | {name: _without(segment, name) for name in names}
    calls = {name: partial(_rendered_s, each, each.draws(0, 1 + _ROUNDS)) for name, each in arms.items()}
    times = compare(calls, base="batch", rounds=(_ROUNDS, _ROUNDS), seconds=seconds).seconds
    # Means: with probabilities below 1, some batches hold more of an operation than others, the same for all arms.
    batch_s, *without_s = (statistics.fmean(samples) for samples in times.values())
    return {"batch": batch_s} | {name: max(0.0, batch_s - each) for name, each in zip(names, without_s, strict=True)}


def _rendered_s(segment: Segment, draws: Iterator[Any]) -> float:
    """Seconds of making the next batch."""
    drawn, start = next(draws), time.perf_counter()
    segment.rendered(drawn)
    synchronize(segment.device)
    return time.perf_counter() - start


def _without(segment: Segment, name: str) -> Segment:
    ops = tuple(dataclasses.replace(op, prob=0.0) if type(op).__name__ == name else op for op in segment.chain.ops)
    chain = dataclasses.replace(segment.chain, ops=ops)
    return dataclasses.replace(segment, chain=chain, stages=stages_of(chain, segment.warp.size))


# Work between steps


@dataclass(frozen=True, kw_only=True, slots=True)
class PeriodicCosts:
    """Seconds of one validation and one checkpoint, and how often the run has them."""

    validation_s: float
    """Time of all validation cases."""
    timed_cases: int
    """Cases on which that was measured."""
    validations: int
    checkpoint_s: float
    """Time for which one stops the training."""
    write_s: float
    """Time until one is on disk, in parallel with the training."""
    checkpoints: int
    steps: int
    """Steps of the run."""


def measure_periodic(components: RunComponents, folder: Path, *, step_s: float, seconds: float) -> PeriodicCosts:
    """Time a validation of a few cases and a checkpoint in `folder`."""
    train = components.planned.config.train
    validated_s, timed = _validation(components, seconds)
    stands, writes = save_checkpoint(components, folder)
    # The next save waits for the one before it.
    stands += max(0.0, writes - train.checkpoint_every * step_s)
    before_first = multiples_before(train.validate_from, train.steps, train.validate_every)
    return PeriodicCosts(
        validation_s=validated_s,
        timed_cases=timed,
        # At regular intervals from the first on, and at the end.
        validations=-(-train.steps // train.validate_every) - before_first,
        checkpoint_s=stands,
        write_s=writes,
        checkpoints=-(-train.steps // train.checkpoint_every),
        steps=train.steps,
    )


def _validation(components: RunComponents, seconds: float) -> tuple[float, int]:
    """Seconds for all cases of `components`, by their voxels, and how many were timed."""
    cases = components.planned.validation
    voxels = [components.arena.label(case).numel() for case in components.arena.index(tuple(case.id for case in cases))]
    count = 1
    elapsed = validate_some(components, 1)  # warm-up: allocations and lookups of the first call don't count
    if elapsed < seconds:
        count = max(1, min(len(cases), 8, int((seconds - elapsed) / max(elapsed, 1e-6))))
        elapsed = validate_some(components, count)
    return elapsed * sum(voxels) / sum(voxels[:count]), count


def device_busy(step: Callable[[], object], device: torch.device, *, steps: int = 3) -> float | None:
    """Seconds of a step in which the GPU has a kernel to run, by torch's profiler; None on a CPU or where it fails."""
    if not kind_of(device).streams:
        return None
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[getattr(ProfilerActivity, device.type.upper())]) as recorded:
            for _ in range(steps):
                step()
            synchronize(device)
        total = sum(float(event.self_device_time_total) for event in recorded.key_averages())
    except (RuntimeError, AttributeError):
        return None
    return total / 1e6 / steps if total > 0 else None


_WARMUP = 2


@dataclass(slots=True)
class Marks:
    """Measures named intervals: by the host's clock on a CPU, on the device's queue on a GPU."""

    device: torch.device
    _events: list[tuple[str, Any]] = field(default_factory=list)

    def mark(self, name: str) -> None:
        """The time since the previous mark belongs to `name`."""
        if kind_of(self.device).streams:
            event = torch.get_device_module(self.device).Event(enable_timing=True)
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
            totals[name] += before.elapsed_time(after) / 1e3 if kind_of(self.device).streams else after - before
        return dict(totals)


def timed_step(step: TrainStep, marks: Marks) -> TrainStep:
    """A step like `step` that marks where forward (with the loss), backward and optimizer end."""

    def marked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            result = call(*arguments)
            marks.mark(name)
            return result

        return timed

    update: Any = SimpleNamespace(
        backward=marked("backward", step.update.backward), apply=marked("optimizer", step.update.apply)
    )
    return dataclasses.replace(step, loss=marked("forward", step.loss), update=update)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSteps:
    """Mean seconds of a step and of its marked parts: batch, forward, backward, optimizer, around."""

    steps: int
    step_s: float
    marks: dict[str, float]


def run_steps(step: TrainStep, feed: Feed, *, steps: int, seconds: float, last: int) -> TimedSteps:
    """Train at most `steps` steps after the warm-up; fewer, but 2, if `seconds` are over. last: steps of the run."""
    marks, start, numbers = Marks(step.device), time.perf_counter(), itertools.count()
    call = timed_step(step, marks)
    with closing(iter(feed)) as batches:

        def run() -> None:
            batch = next(batches)
            marks.mark("batch")
            call(batch["image"], batch["label"], min(next(numbers), last - 1))
            marks.mark("around")

        for _ in range(_WARMUP):
            run()
        synchronize(step.device)
        marks.begin()
        left_s = start + seconds - time.perf_counter()
        step_s = mean_seconds(lambda _: run(), steps=steps, seconds=left_s, device=step.device)
    count = next(numbers) - _WARMUP
    return TimedSteps(steps=count, step_s=step_s, marks={name: each / count for name, each in marks.seconds().items()})


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
    prepared_s: float = 0.0,
    fixed_s: float | None = None,
    doubled: float | None = None,
    feed_alone_s: float | None = None,
    copy_s: float = 0.0,
    busy_s: float | None = None,
    captured_s: float | None = None,
    cuda: bool = False,
) -> Split:
    """Seconds a step by part, which add up to `step_s`.

    inline: the training device makes its batches itself. prepared_s: of preparing all cases, once. copy_s: of a batch
    to the device. busy_s: of a step in which a GPU computes; the host's launches are the rest of forward and backward.
    captured_s: a step as a CUDA graph, whose phases are taken to be those of the uncaptured one.
    """
    parts = {name: ran.marks[name] for name in ("forward", "backward", "optimizer")}
    copies = 0.0 if inline else min(ran.marks["batch"], copy_s)
    parts |= {"sample" if inline else "wait": ran.marks["batch"] - copies, "host_to_device": copies}
    compute = parts["forward"] + parts["backward"]
    launch_s = 0.0 if busy_s is None else min(compute, max(0.0, compute + parts["optimizer"] - busy_s))
    if compute > 0:
        parts |= {name: parts[name] * (1 - launch_s / compute) for name in ("forward", "backward")}
    parts["overhead"] = ran.marks["around"] + launch_s
    # The parts add up to a step: what is left over is the interpreter's.
    total = sum(parts.values())
    if total > ran.step_s:
        parts = {name: value * ran.step_s / total for name, value in parts.items()}
    else:
        parts["overhead"] += ran.step_s - total
    if captured_s is not None:
        parts = {name: value * captured_s / ran.step_s for name, value in parts.items()}
    if periodic is not None:
        # Spread over the run's steps.
        parts["validation"] = periodic.validation_s * periodic.validations / periodic.steps
        parts["checkpoint"] = periodic.checkpoint_s * periodic.checkpoints / periodic.steps
        parts["prepare"] = prepared_s / periodic.steps
    return Split(
        steps=ran.steps,
        step_s=sum(parts.values()),
        parts={name: parts.get(name, 0.0) for name in PARTS},
        fixed_batch_s=fixed_s,
        feed_alone_s=feed_alone_s,
        doubled=doubled,
        on_cpu=not cuda,
    )
