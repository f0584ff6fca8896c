"""The whole step, batch included, as one CUDA graph: one launch instead of some thousand.

The first steps run as they are, on the stream that is then captured: they are the warm-up, and the run's own first
steps as well, so that nothing has to be undone after them. Capturing runs nothing. Before the graph is believed, one
step is taken by it and one without it from the same state, and the two must agree.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hasten.augment.program import Program, Segment
from hasten.engine.aside import Aside
from hasten.engine.measure import certainly_faster, compared
from hasten.engine.step import TrainStep
from hasten.optim.average import average_share

log = logging.getLogger(__name__)

WARM_UP = 3
"""Steps before the capture; torch asks for some so that libraries have made their handles and workspaces."""


_SECONDS = 10.0
"""That comparing the graph with the step may take."""
_LEAST = 0.02
"""A smaller gain is none."""


def why_not(step: TrainStep, program: Program) -> str | None:
    """What keeps a step from being captured; None if nothing that can be told beforehand does."""
    if step.device.type != "cuda":
        return "there is no CUDA device"
    if step.strategy.world.size > 1 or step.strategy.name == "dp":
        return "several processes or devices share the step"
    if program.segment is None:
        return "patches change their size, or cases are dealt anew, on the way"
    if program.segment.why_not_captured is not None:
        return program.segment.why_not_captured
    if step.update.scaler is not None and step.update.scaler.is_enabled():
        return "fp16's gradient scaler changes its mind on the host; use bf16"
    if not getattr(step.update.optimizer, "_step_supports_amp_scaling", False):
        return f"{type(step.update.optimizer).__name__} can't leave a step out without asking the host"
    if step.accumulate > 1:
        return "a batch goes through the network in pieces"
    return None


@dataclass(kw_only=True, slots=True)
class CapturedStep:
    """`captured(index)` makes the batch of 0-based step `index` and trains on it; steps must come one after another.

    Where capturing fails, or the graph does not do what the step does, every step runs uncaptured, and `why` says so.
    """

    step: TrainStep
    segment: Segment
    always: bool = False
    """Keep a graph that is not faster than the step."""
    engaged: bool = False
    """Whether steps are replayed."""
    why: str = "not captured yet"
    _done: int = 0
    _graph: torch.cuda.CUDAGraph | None = None
    _aside: Aside | None = None
    _sample: Tensor = field(init=False)
    """(B,) int64 sample numbers of the step that the graph is to make."""
    _share: Tensor = field(init=False)
    """() how far the average moves."""
    _loss: Tensor | None = None

    def __post_init__(self) -> None:
        self._sample = torch.arange(self.segment.batch_size, device=self.segment.store.device)
        self._share = torch.ones((), device=self.segment.store.device)

    def __call__(self, index: int) -> Tensor:
        """Returns () float32 loss on the device, in memory of its own."""
        self._done += 1
        if self._graph is not None:
            self._set(index)
            self._graph.replay()
            assert self._loss is not None
            return self._loss.clone()
        if self.why != "not captured yet":
            return self._plain(index)
        if self._done <= WARM_UP:
            return self._warm(index)
        return self._begin(index)

    def close(self) -> None:
        """Give the graph's memory back. The next step runs uncaptured."""
        if self._graph is not None:
            self._wait()
            self._graph.reset()
        self._graph, self._loss, self.engaged, self.why = None, None, False, "closed"
        self.step.update.share = None

    def _plain(self, index: int) -> Tensor:
        batch = self.segment(index)
        return self.step(batch["image"], batch["label"], index)

    def _warm(self, index: int) -> Tensor:
        """An ordinary step on the side stream, in the form that is captured."""
        if self._aside is None:
            self._aside = Aside(self.step.device)
            self._prepare()
        self._set(index)
        return self._aside.run(self._body)

    def _begin(self, index: int) -> Tensor:
        """Capture, and take this step by the graph if it does what the step does."""
        assert self._aside is not None
        before = self._state()
        try:
            self._set(index)
            graph, self._loss = self._aside.capture(self._body)
        except Exception as error:
            lines = str(error).strip().splitlines()
            return self._give_up(f"capturing failed: {lines[0] if lines else type(error).__name__}", before, index)
        wanted, wanted_state = self._warm(index), self._state()
        self._restore(before)
        graph.replay()
        found = self._loss.clone()
        wrong = self._differs(found, wanted, wanted_state)
        if wrong is not None:
            return self._give_up(wrong, before, index)
        # The weights go on meanwhile, and are restored below.
        arms: dict[str, Callable[[], object]] = {"step": lambda: self._warm(index), "graph": graph.replay}
        comparison = compared(arms, self.step.device, base="step", seconds=_SECONDS, least=_LEAST)
        plain, replayed = comparison.median("step"), comparison.median("graph")
        told = f"{1e3 * replayed:.2f} ms as one CUDA graph, batch included, against {1e3 * plain:.2f} ms"
        if not self.always and not certainly_faster(comparison, "graph", self.step.device, least=_LEAST):
            return self._give_up(f"not certainly faster: {told}", before, index)
        self._restore(before)
        graph.replay()
        self._graph, self.engaged, self.why = graph, True, told
        return self._loss.clone()

    def _wait(self) -> None:
        if self.step.device.type == "cuda":
            torch.cuda.synchronize(self.step.device)

    def _give_up(self, why: str, before: list[Tensor], index: int) -> Tensor:
        log.warning("the step runs without a CUDA graph: %s", why)
        self._restore(before)
        self._loss, self.why = None, why
        self.step.update.share = None
        return self._plain(index)

    def _prepare(self) -> None:
        """What a graph replays must not lie in numbers of the host: rates and shares become tensors."""
        for group in self.step.update.optimizer.param_groups:
            group["lr"] = torch.as_tensor(float(group["lr"]), device=self.step.device)
            if "capturable" in group:
                group["capturable"] = True
        self.step.update.share = self._share

    def _set(self, index: int) -> None:
        size = self._sample.shape[0]
        torch.arange(index * size, (index + 1) * size, out=self._sample)
        self._share.fill_(average_share(index, self.step.update.average_decay))
        schedule = self.step.update.schedule
        if schedule is not None:
            for group in self.step.update.optimizer.param_groups:
                group["lr"].fill_(schedule(index))

    def _body(self) -> Tensor:
        update = self.step.update
        schedule, update.schedule = update.schedule, None  # set by `_set`, outside the graph
        try:
            with torch.no_grad():
                batch = self.segment.rendered(self.segment.drawn(self._sample))
            return self.step(batch["image"], batch["label"], 0)
        finally:
            update.schedule = schedule

    def _tensors(self) -> list[Tensor]:
        """Everything that a step changes."""
        update = self.step.update
        modules = [update.weights, *([update.average] if update.average is not None else [])]
        found = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
        states = [value for state in update.optimizer.state.values() for value in state.values()]
        return [*found, *(value for value in states if isinstance(value, Tensor)), update.skipped]

    def _state(self) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in self._tensors()]

    def _restore(self, state: list[Tensor]) -> None:
        with torch.no_grad():
            for tensor, value in zip(self._tensors(), state, strict=True):
                tensor.copy_(value)

    def _differs(self, found: Tensor, wanted: Tensor, wanted_state: list[Tensor]) -> str | None:
        """This once the host looks at values."""
        if not torch.isclose(found, wanted, rtol=2e-2, atol=1e-3):
            return f"the graph's loss is {found.item():.4g}, the step's {wanted.item():.4g}"
        for mine, other in zip(self._tensors(), wanted_state, strict=True):
            distance = (mine.detach().double() - other.double()).norm()
            if not distance <= 0.02 * other.double().norm() + 1e-3:
                return "the graph leaves other weights behind than the step"
        return None
