"""The whole step, and the next one's batch beside it, as one CUDA graph: one launch instead of some thousand.

The first steps run as they are, on the stream that is then captured: they are the warm-up, and the run's own first
steps as well, so that nothing has to be undone after them. Capturing runs nothing. Before the graph is used, one
step runs without it and one with it from the same state, random numbers included, and the two must agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hasten.augment.program import Program, Segment
from hasten.config.decision import Accelerator
from hasten.devices import kind_of
from hasten.files import first_line
from hasten.nets.random_state import random_states, set_random_states
from hasten.optim.average import average_share
from hasten.optim.schedule import set_rate
from hasten.runtime.batch_size import release_memory
from hasten.runtime.device import synchronize
from hasten.runtime.side_stream import SideStream
from hasten.training.step import TrainStep

log = logging.getLogger(__name__)

WARM_UP = 3
"""Steps before the capture; torch asks for some so that libraries have made their handles and workspaces."""


def why_not(step: TrainStep) -> str | None:
    """Why a step cannot be captured; None if no reason is known beforehand."""
    if not kind_of(step.device).graphs:
        return "there is no CUDA device"
    if step.strategy.world.size > 1 or step.strategy.name == "dp":
        return "several processes or devices share the step"
    if step.update.scaler is not None and step.update.scaler.is_enabled():
        return "fp16's gradient scaler changes its mind on the host; use bf16"
    if not getattr(step.update.optimizer, "_step_supports_amp_scaling", False):
        return f"{type(step.update.optimizer).__name__} can't leave a step out without asking the host"
    if step.accumulate > 1:
        return "a batch goes through the network in pieces"
    return None


def why_no_batch(program: Program) -> str | None:
    """Why a run's batches cannot be part of the graph; None if no reason is known beforehand."""
    if program.segment is None:
        return "patch sizes change, or cases are redistributed, during the run"
    return program.segment.why_not_captured


def captured_run(step: TrainStep, segment: Segment) -> CapturedStep:
    """A step whose graph makes its batches, too, each beside the step before."""
    size = segment.batch_size
    sample = torch.arange(size, device=segment.store.device)

    def load(index: int) -> None:
        torch.arange(index * size, (index + 1) * size, out=sample)

    def batch() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            made = segment.rendered(segment.drawn(sample))
        return made["image"], made["label"]

    return CapturedStep(step=step, load=load, batch=batch, ahead=True)


_State = tuple[list[Tensor], list[Tensor]]
"""What a step starts from and changes: tensors, and the generators, as its dropouts must draw the same masks."""


@dataclass(kw_only=True, slots=True)
class CapturedStep:
    """`captured(index)` trains on the batch of 0-based step `index`; steps must come one after another.

    Its first steps warm up (1), the next one captures and compares (2), later ones are replayed (3). Where capturing
    fails, or the graph does not do what the step does, every step runs uncaptured, and `reason` says so.
    """

    step: TrainStep
    load: Callable[[int], None]
    """Writes the input of `batch` for a 0-based step, into the same memory each time."""
    batch: Callable[[], tuple[Tensor, Tensor]]
    """Image (B, C, *S) and label (B, 1, *S), made from that input within the graph."""
    ahead: bool = False
    """Whether a batch depends on the number of its step alone, so that the graph makes the next one beside the step."""
    on: bool = False
    """Whether steps are replayed."""
    settled: bool = False
    """Whether it is decided how the steps run."""
    reason: str = "not captured yet"
    _done: int = 0
    _graph: torch.cuda.CUDAGraph | None = None
    _side: SideStream | None = None
    _rates: list[Tensor] = field(init=False)
    """() learning rate of each group of the optimizer, as the graph reads it. Outside the step the groups keep numbers,
    as other schedulers, logs and checkpoints expect."""
    _share: Tensor = field(init=False)
    """() how far the average moves."""
    _loss: Tensor | None = None
    _held: tuple[Tensor, ...] = ()
    """Where the graph reads its batch, if the next one is made ahead."""
    _holds: int | None = None
    """The step whose batch lies there once what is queued has run."""

    def __post_init__(self) -> None:
        device = self.step.device
        self._rates = [torch.zeros((), device=device) for _ in self.step.update.optimizer.param_groups]
        self._share = torch.ones((), device=device)

    def __call__(self, index: int) -> Tensor:
        """Returns () float32 loss on the device, in its own memory."""
        self._done += 1
        if self.on:
            return self._replay(index)
        if self.settled:
            return self._plain(index)
        if self._done <= WARM_UP:
            return self._warm(index)
        return self._begin(index)

    @property
    def accelerator(self) -> Accelerator:
        return Accelerator(self.on, "measured", self.reason)

    def close(self) -> None:
        """Free the graph's memory. The next step runs uncaptured."""
        self._drop()
        self.settled, self.reason = True, "closed"

    def _plain(self, index: int) -> Tensor:
        self.load(index)
        return self.step(*self.batch(), index)

    def _warm(self, index: int) -> Tensor:
        """An ordinary step on the side stream, in the form that is captured."""
        if self._side is None:
            self._side = SideStream(self.step.device)
            for group in self.step.update.optimizer.param_groups:
                if "capturable" in group:
                    group["capturable"] = True
        self._set(index)
        return self._side.run(self._body)

    def _begin(self, index: int) -> Tensor:
        """Capture the step; replay it if the results agree, otherwise run it eagerly."""
        self.settled, before = True, None
        try:
            before = self._state()
            self.reason = self._capture(index, before)
        except Exception as error:  # lack of memory among them
            self.reason = f"capturing failed: {first_line(error)}"
        # Only after the except block: the traceback keeps the tensors of the failed step alive.
        if before is not None:
            self._restore(before)
            before = None  # so that the step has its memory
        if not self.on:
            log.warning("the step runs without a CUDA graph: %s", self.reason)
            self._drop()
        return self._replay(index) if self.on else self._plain(index)

    def _capture(self, index: int, before: _State) -> str:
        """Compare a graph with the step and return the outcome as text; sets `on` if they agree."""
        assert self._side is not None
        # 1. The step as it is, from the state before it. Its activations are freed before the graph has its own.
        loss = self._warm(index)
        expected = self._state()
        release_memory()
        # 2. The capture, which runs nothing.
        self._set(index)
        self._graph, self._loss = self._side.capture(self._body)
        # 3. The graph, from the same state.
        self._restore(before)
        difference = self._differs(self._replay(index), loss, expected)
        self.on = difference is None
        return difference or "one CUDA graph in place of some thousand launches, with the step's loss and weights"

    def _replay(self, index: int) -> Tensor:
        assert self._graph is not None
        assert self._loss is not None
        self._set(index)
        self._graph.replay()
        return self._loss.clone()

    def _drop(self) -> None:
        """Free the graph, its memory, and the gradients of an aborted step."""
        synchronize(self.step.device)
        if self._graph is not None:
            self._graph.reset()
        self._graph, self._loss, self.on = None, None, False
        self._held, self._holds = (), None
        self.step.update.optimizer.zero_grad(set_to_none=True)
        release_memory()

    def _set(self, index: int) -> None:
        """Write what the graph reads: the batch's input, and numbers of Python's as tensors."""
        update = self.step.update
        if self.ahead and self._holds != index:
            self.load(index)
            self._hold(self.batch())
        self.load(index + self.ahead)
        self._holds = index + 1
        self._share.fill_(average_share(index, update.average_decay))
        if update.schedule is not None:
            set_rate(update.optimizer, update.schedule(index))
        for rate, group in zip(self._rates, update.optimizer.param_groups, strict=True):
            rate.fill_(group["lr"])

    def _body(self) -> Tensor:
        update, groups = self.step.update, self.step.update.optimizer.param_groups
        schedule, numbers = update.schedule, [group["lr"] for group in groups]
        update.schedule, update.share = None, self._share
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate
        try:
            return self._beside() if self.ahead else self.step(*self.batch(), 0)
        finally:
            update.schedule, update.share = schedule, None
            for group, number in zip(groups, numbers, strict=True):
                group["lr"] = number

    def _beside(self) -> Tensor:
        """The step on the batch that is held, and beside it the next batch, which then takes its place."""
        assert self._side is not None
        made: list[tuple[Tensor, Tensor]] = []
        image, label = self._held
        with self._side.beside(lambda: made.append(self.batch())):
            loss = self.step(image, label, 0)
        self._hold(made[0])
        return loss

    def _hold(self, made: tuple[Tensor, Tensor]) -> None:
        self._held = self._held or tuple(map(torch.empty_like, made))
        for held, value in zip(self._held, made, strict=True):
            held.copy_(value)

    def _tensors(self) -> list[Tensor]:
        update = self.step.update
        modules = [update.weights, *([update.average] if update.average is not None else [])]
        parameters = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        states = [value for state in update.optimizer.state.values() for value in state.values()]
        return [*parameters, *(value for value in states if isinstance(value, Tensor)), update.skipped, *self._held]

    def _state(self) -> _State:
        return [tensor.detach().clone() for tensor in self._tensors()], random_states(self.step.device)

    def _restore(self, state: _State) -> None:
        tensors, generators = state
        synchronize(self.step.device)  # a step that failed may have left work on its streams
        self._holds = None  # a batch is made again rather than kept
        set_random_states(generators, self.step.device)
        with torch.no_grad():
            for tensor, value in zip(self._tensors(), tensors, strict=True):
                tensor.copy_(value)

    def _differs(self, loss: Tensor, expected: Tensor, after: _State) -> str | None:
        """Why the graph's loss or weights differ from the step's; None if they agree. Reads device values."""
        if not torch.isclose(loss, expected, rtol=2e-2, atol=1e-3):
            return f"the graph's loss is {loss.item():.4g}, the step's {expected.item():.4g}"
        for actual, other in zip(self._tensors(), after[0], strict=True):
            distance = (actual.detach().double() - other.double()).norm()
            if not distance <= 0.02 * other.double().norm() + 1e-3:
                return "the graph leaves other weights, or another batch, behind than the step"
        return None
