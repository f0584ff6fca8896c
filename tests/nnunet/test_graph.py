"""The trainer's step as a CUDA graph, with a stand-in for CUDA that runs the step where a graph would be replayed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("nnunetv2.training.loss.compound_losses")

from hasten.nnunet import step as graph
from hasten.nnunet.loss import objective
from hasten.nnunet.step import GraphedStep, fused_optimizer, make_step, why_not_captured
from hasten.training import capture
from hasten.training.step import TrainStep
from tests.nnunet.test_step import CPU, batch, loss, network, setting, sgd
from tests.training.test_capture import FakeStream

STEPS = 9
LONG = {"iterations": 250_000}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[FakeStream]:
    class Own(FakeStream):
        pass

    monkeypatch.setattr(capture, "SideStream", Own)
    monkeypatch.setattr(graph, "why_not_captured", lambda step, setting: None)
    return Own


def step_of(tmp_path: Path) -> TrainStep:
    net = network()
    step, _ = make_step(net, objective(loss()), fused_optimizer(sgd(net)), setting(tmp_path), CPU)
    return step


def trained(step: TrainStep, call: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Losses and weights of some steps, the later ones with another learning rate, as nnU-Net's schedule sets it."""
    losses = []
    [group] = step.update.optimizer.param_groups[:1]
    for number in range(STEPS):
        if number == STEPS - 3:
            group["lr"] = 0.1 * group["lr"]
        losses.append(call(*batch(number)))
        assert type(group["lr"]) is float
    return losses, [weight.detach() for weight in step.update.weights.parameters() if weight.ndim > 1]


def assert_as_plain(tmp_path: Path, step: TrainStep, call: Any) -> None:
    plain = step_of(tmp_path)
    wanted = trained(plain, lambda image, target: plain(image, target, 0))
    for results, expected in zip(trained(step, call), wanted, strict=True):
        torch.testing.assert_close(results, expected, rtol=1e-3, atol=1e-4)


def test_replayed_steps_train_as_plain_ones(stand_in: type[FakeStream], tmp_path: Path) -> None:
    step = step_of(tmp_path)
    graphed = GraphedStep(step, setting(tmp_path))
    assert graphed.accelerator.reason == "not captured yet"
    assert_as_plain(tmp_path, step, graphed)
    assert graphed.accelerator.on
    assert "one CUDA graph" in graphed.accelerator.reason


def test_a_batch_of_another_shape_runs_without_the_graph(stand_in: type[FakeStream], tmp_path: Path) -> None:
    step, plain = step_of(tmp_path), step_of(tmp_path)
    graphed = GraphedStep(step, setting(tmp_path))
    for number in range(STEPS):
        image, target = batch(number)
        size = 1 if number == STEPS - 2 else 2
        value, expected = graphed(image[:size], target[:size]), plain(image[:size], target[:size], 0)
        torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)
    assert graphed.accelerator.on
    graphed.close()
    assert not graphed.accelerator.on
    graphed(*batch(STEPS))


def test_what_is_not_captured_says_why(tmp_path: Path) -> None:
    step = step_of(tmp_path)
    assert GraphedStep(step, setting(tmp_path, **LONG)).accelerator.reason == "there is no CUDA device"
    step = dataclasses.replace(step, device=torch.device("cuda"))
    for reason, others in (
        ("None", LONG),
        ("1000 iterations", {}),
        ("processes share", {"several_ranks": True, **LONG}),
        ("asks the host", {"loss_asks_host": True, **LONG}),
    ):
        assert reason in str(why_not_captured(step, setting(tmp_path, **others)))
    step.update.scaler = torch.amp.GradScaler("cpu")
    assert "gradient scaler" in str(why_not_captured(step, setting(tmp_path, **LONG)))
