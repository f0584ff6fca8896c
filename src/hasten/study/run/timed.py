"""A step whose parts are timed on the device's timeline, and the loop that is timed around it."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hasten.augment.chain import Batch
from hasten.engine.step import TrainStep
from hasten.feed.feed import Feed
from hasten.study.environment.rates import synchronize

StepLike = Callable[[Tensor, Tensor, int], Any]
"""Called with image, label and the 0-based step, as `TrainStep` is."""
WrapStep = Callable[[StepLike], StepLike]
WrapFeed = Callable[[Iterable[Batch]], Iterable[Batch]]

_READS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__")
"""Methods of a tensor that copy its values to the host, and so wait for the device."""


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


class TimedStep:
    """A `TrainStep` that marks where forward, backward and optimizer end."""

    def __init__(self, step: TrainStep, marks: Marks) -> None:
        self.marks, self.running = marks, False
        fields = {field.name: getattr(step, field.name) for field in dataclasses.fields(step)}
        self._step = _Marked(**{**fields, "update": _TimedUpdate(step.update, marks)})

    def __call__(self, image: Tensor, label: Tensor, index: int) -> Tensor:
        """Run the step like `TrainStep`, with times."""
        self.marks.mark("around")
        self.running = True
        try:
            return self._step(image, label, index)
        finally:
            self.running = False


class _Marked(TrainStep):
    __slots__ = ()

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        loss = TrainStep.forward(self, image, label)
        self.update._marks.mark("forward")  # type: ignore[attr-defined]
        return loss


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSteps:
    """Mean seconds of a step, of its marked parts, and of the feed as seen by the host."""

    steps: int
    step_s: float
    marks: dict[str, float]
    made_s: float
    """Time of making the batch inside the run's own feed, on the host."""
    asked_s: float
    """Time the step waited for its batch, on the host: more than `made_s` only if the feed is wrapped."""
    reads: float
    """Times a step that values of the device were read outside the step itself."""


def run_steps(
    step: TrainStep,
    feed: Feed,
    *,
    steps: int,
    seconds: float,
    last: int,
    wrap_step: WrapStep | None = None,
    wrap_feed: WrapFeed | None = None,
    warmup: int = 2,
) -> TimedSteps:
    """Train at most `steps` steps after the warm-up; fewer, but 2, if `seconds` are over. last: steps of the run."""
    marks = Marks(step.device)
    timed = TimedStep(step, marks)
    call: StepLike = wrap_step(timed) if wrap_step is not None else timed
    reads = _Reads(timed)
    start = begin = time.perf_counter()
    count, asked_s, index, made_before_s = 0, 0.0, 0, 0.0
    with closing(iter(feed)) as source, reads.counted() if wrap_step is not None else nullcontext():
        batches = iter(wrap_feed(source)) if wrap_feed is not None else source
        while True:
            if index == warmup:
                synchronize(step.device)
                made_before_s, asked_s, reads.count, marks._events = feed.wait_seconds, 0.0, 0, []
                begin = time.perf_counter()
                marks.mark("begin")
            batch_start = time.perf_counter()
            batch = next(batches)
            asked_s += time.perf_counter() - batch_start
            marks.mark("batch")
            reads.outside = True
            call(batch["image"], batch["label"], min(index, last - 1))
            reads.outside = False
            marks.mark("around")
            index += 1
            count = max(0, index - warmup)
            if count >= steps or (count >= 2 and time.perf_counter() - start > seconds):
                break
        synchronize(step.device)
        wall = time.perf_counter() - begin
    return TimedSteps(
        steps=count, step_s=wall / count, marks={name: value / count for name, value in marks.seconds().items()},
        made_s=(feed.wait_seconds - made_before_s) / count, asked_s=asked_s / count, reads=reads.count / count,
    )  # fmt: skip


class _Reads:
    """Counts tensor values that a wrapped step reads in this thread, outside the step itself."""

    def __init__(self, timed: TimedStep) -> None:
        self.count, self.outside = 0, False
        self._timed, self._thread = timed, threading.get_ident()

    @contextmanager
    def counted(self) -> Iterator[None]:
        originals = {name: torch.Tensor.__dict__[name] for name in _READS if name in torch.Tensor.__dict__}
        for name in _READS:
            setattr(torch.Tensor, name, self._counting(getattr(torch.Tensor, name)))
        try:
            yield
        finally:
            for name in _READS:
                if name in originals:
                    setattr(torch.Tensor, name, originals[name])
                else:
                    delattr(torch.Tensor, name)

    def _counting(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            if self.outside and not self._timed.running and threading.get_ident() == self._thread:
                self.count += 1
            return plain(*args, **kwargs)

        return counting


def feed_alone(feed: Feed, wrap_feed: WrapFeed | None, *, steps: int, seconds: float, device: torch.device) -> float:
    """Mean seconds of a batch without a step, after a warm-up batch."""
    with closing(iter(feed)) as source:
        batches = iter(wrap_feed(source)) if wrap_feed is not None else source
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
