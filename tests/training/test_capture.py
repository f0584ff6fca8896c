"""The order of things around a CUDA graph, with a stand-in for CUDA that runs where a graph would be replayed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from hasten.augment.make_program import program_of
from hasten.augment.program import HostSource, Program, Segment
from hasten.config.schema import LossConfig
from hasten.nets.build import build_loss
from hasten.optim.average import average_of
from hasten.runtime.side_stream import SideStream
from hasten.training import capture
from hasten.training.capture import CapturedStep, captured_run, why_no_batch, why_not
from hasten.training.step import TrainStep
from hasten.training.update import Update
from tests.augment.stores import random_store, segment_of
from tests.training.test_step import matrices, network_of, weights_of

STEPS = 9


class Graph:
    """Replaying runs the body again; as on a GPU, the result lies where the capture put it."""

    def __init__(self, body: Callable[[], Tensor], spoil: float) -> None:
        self.body, self.spoil, self.result = body, spoil, torch.zeros(())

    def replay(self) -> None:
        self.result.copy_(self.body() * self.spoil)

    def reset(self) -> None:
        self.body = lambda: torch.full((), torch.nan)


class FakeStream:
    error: Exception | None = None
    spoil = 1.0
    late = False
    """Whether what is queued beside the step runs at the end of it, as late as the device may run it."""

    def __init__(self, device: torch.device) -> None:
        pass

    @contextmanager
    def beside(self, body: Callable[[], None]) -> Iterator[None]:
        if not self.late:
            body()
        yield
        if self.late:
            body()

    def run(self, body: Callable[[], Tensor]) -> Tensor:
        return body()

    def capture(self, body: Callable[[], Tensor]) -> tuple[Any, Tensor]:
        if self.error is not None:
            raise self.error
        graph = Graph(body, self.spoil)
        return graph, graph.result


def segment() -> Segment:
    store = random_store([(12, 12, 12), (16, 12, 14)], dtype="float16")
    return segment_of(store, (8, 8, 8), batch_size=2, seed=3, foreground_prob=0.5, affine_prob=0.5)


def program() -> Program:
    return program_of(segment())


def step_of(network: nn.Module) -> TrainStep:
    update = Update(
        weights=network,
        optimizer=torch.optim.AdamW(network.parameters(), lr=1e-2, fused=True),
        schedule=lambda index: 1e-2 / (1 + index),
        average=average_of(network),
        average_decay=0.9,
        clip_norm=1.0,
    )
    return TrainStep(network=network, loss=build_loss(LossConfig()), update=update, device=torch.device("cpu"))


def plain(dropout: float = 0.0) -> tuple[list[Tensor], list[Tensor]]:
    step, batches = step_of(network_of(3, dropout)), program()
    losses = [step(*batches(index).values(), index) for index in range(STEPS)]
    return losses, [*weights_of(step.update.weights), *weights_of(step.update.average)]


def captured(dropout: float = 0.0) -> tuple[CapturedStep, list[Tensor], list[Tensor]]:
    step = captured_run(step_of(network_of(3, dropout)), segment())
    losses = [step(index) for index in range(STEPS)]
    update = step.step.update
    return step, losses, [*weights_of(update.weights), *weights_of(update.average)]


def assert_close(result: list[Tensor], wanted: list[Tensor]) -> None:
    """Losses, or weights without the vectors: a bias that a norm cancels has a gradient of rounding alone."""
    if result[0].ndim:
        result, wanted = matrices(result), matrices(wanted)
    for left, right in zip(result, wanted, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[FakeStream]:
    class Own(FakeStream):
        pass

    monkeypatch.setattr(capture, "SideStream", Own)
    return Own


@pytest.mark.parametrize(("dropout", "late"), [(0.0, False), (0.5, False), (0.5, True)])
def test_replayed_steps_train_as_plain_ones(stand_in: type[FakeStream], dropout: float, late: bool) -> None:
    """A dropout draws the same masks in both, and it is the same when the batch made beside a step is made."""
    stand_in.late = late
    step, losses, weights = captured(dropout)
    result = torch.get_rng_state()
    wanted_losses, wanted = plain(dropout)
    assert step.on, step.reason
    assert_close(losses, wanted_losses)
    assert_close(weights, wanted)
    assert torch.equal(result, torch.get_rng_state())


@pytest.mark.parametrize("when", ["reference", "capture", "replay"])
def test_a_lack_of_memory_leaves_the_training_as_it_was(
    stand_in: type[FakeStream], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Wherever it strikes, and though it leaves gradients of half a step and work on its stream; no copy stays."""
    runs, whole = 0, CapturedStep._state
    queued, copies, left = list[Callable[[], object]](), list[weakref.ref[Tensor]](), list[int]()

    def short(body: Callable[[], Tensor]) -> Tensor:
        for weight in step.step.update.weights.parameters():
            weight.grad = torch.full_like(weight, 1e3)
            queued.append(partial(weight.data.fill_, 1e3))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    def run(self: FakeStream, body: Callable[[], Tensor]) -> Tensor:
        nonlocal runs
        runs += 1
        return short(body) if when == "reference" and runs > capture.WARM_UP else body()

    def state(self: CapturedStep) -> Any:
        copies.extend(map(weakref.ref, (result := whole(self))[0]))
        return result

    monkeypatch.setattr(CapturedStep, "_state", state)
    monkeypatch.setattr(capture, "synchronize", lambda device: [queued.pop()() for _ in range(len(queued))])
    monkeypatch.setattr(capture, "release_memory", lambda: left.append(sum(copy() is not None for copy in copies)))
    monkeypatch.setattr(stand_in, "run", run)
    if when == "capture":
        monkeypatch.setattr(stand_in, "capture", lambda self, body: short(body))
    if when == "replay":
        monkeypatch.setattr(Graph, "replay", lambda self: short(self.body))
    step = captured_run(step_of(network_of(3)), segment())
    losses = [step(index) for index in range(STEPS)]
    assert (step.on, left[-1]) == (False, 0)
    assert step.reason == "capturing failed: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert_close(losses, plain()[0])
    assert_close(weights_of(step.step.update.weights), plain()[1][: len(weights_of(step.step.update.weights))])


@pytest.mark.parametrize(
    ("what", "why"), [("loss", "the graph's loss"), ("weights", "other weights"), ("batch", "or another batch")]
)
def test_a_graph_with_another_result_is_refused(
    stand_in: type[FakeStream], monkeypatch: pytest.MonkeyPatch, what: str, why: str
) -> None:
    whole = Graph.replay

    def replay(self: Graph) -> None:
        whole(self)
        parts = {"loss": [self.result], "weights": step.step.update.weights.parameters(), "batch": step._held[:1]}
        with torch.no_grad():
            for spoiled in parts[what]:
                spoiled.mul_(1.5)

    monkeypatch.setattr(Graph, "replay", replay)
    step = captured_run(step_of(network_of(3)), segment())
    losses = [step(index) for index in range(STEPS)]
    assert not step.on
    assert why in step.reason
    update = step.step.update
    assert_close(losses, plain()[0])
    assert_close([*weights_of(update.weights), *weights_of(update.average)], plain()[1])


def test_work_beside_a_step_is_waited_for_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A capture with a fork that is left open ends with an error of its own, in place of the reason."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda *given, **more: Mock())
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    side: Any = SideStream(torch.device("cpu"))
    with pytest.raises(ZeroDivisionError), side.beside(lambda: 1 // 0):
        pass
    side.stream.wait_stream.assert_called_once_with(side._beside)


def test_what_cannot_be_captured_says_why() -> None:
    step = step_of(network_of(3))
    assert why_not(step) == "there is no CUDA device"
    assert why_not(replace(step, device=torch.device("cuda"))) is None
    assert why_no_batch(program()) is None
    elsewhere = replace(segment(), source=HostSource(stages=1))
    assert "do not all lie on the device" in str(why_no_batch(program_of(elsewhere)))
