"""The step of nnU-Net's trainer as a CUDA graph, on a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("nnunetv2.training.loss.compound_losses")

from hasten.nnunet.loss import objective
from hasten.nnunet.step import GraphedStep, fused_optimizer, make_step, why_not_captured
from hasten.training.capture import WARM_UP
from hasten.training.step import TrainStep
from tests.nnunet.test_step import batch, loss, network, setting, sgd
from tests.nnunet.test_trainer import TINY, planned

CUDA = torch.device("cuda", 0)
STEPS = 10
MEASURED = "from hasten.nnunet import step\n\nstep.LEAST_ITERATIONS = 0\n"


def step_of(tmp_path: Path, precision: str) -> TrainStep:
    net = network().cuda()
    step, _ = make_step(net, objective(loss()), fused_optimizer(sgd(net)), setting(tmp_path), CUDA)
    return dataclasses.replace(step, precision=precision)


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(image.cuda(), target.cuda()) for image, target in map(batch, range(STEPS))]


def trained(step: TrainStep, call: Any) -> tuple[list[Tensor], list[Tensor]]:
    group, losses = step.update.optimizer.param_groups[0], []
    for number, each in enumerate(batches()):
        group["lr"] = 1e-3 / (1 + number)
        losses.append(call(*each))
    return losses, [weight.detach() for weight in step.update.weights.parameters() if weight.ndim > 1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_replayed_steps_train_as_plain_ones(tmp_path: Path, precision: str) -> None:
    plain, step = (step_of(tmp_path, precision) for _ in range(2))
    graphed = GraphedStep(step, setting(tmp_path, iterations=250_000))
    assert graphed._captured is not None, graphed.accelerator.reason
    wanted, expected = trained(plain, lambda image, target: plain(image, target, 0))
    losses, weights = trained(step, graphed)
    assert graphed.accelerator.on, graphed.accelerator.reason
    torch.testing.assert_close(torch.stack(losses), torch.stack(wanted), rtol=2e-2, atol=2e-3)
    for left, right in zip(weights, expected, strict=True):
        assert (left - right).norm() <= 0.05 * right.norm()
    assert len(losses) > WARM_UP + 1
    graphed.close()
    graphed(*batches()[0])


def test_nnunets_fp16_is_not_captured(tmp_path: Path) -> None:
    net = network().cuda()
    scaler = torch.amp.GradScaler("cuda")
    step, _ = make_step(net, objective(loss()), fused_optimizer(sgd(net)), setting(tmp_path), CUDA, scaler)
    assert step.precision == "fp16"
    assert "gradient scaler" in str(why_not_captured(step, setting(tmp_path, iterations=250_000)))


@pytest.mark.slow
def test_nnunet_trains_with_a_graph(tmp_path: Path) -> None:
    made = planned(tmp_path, "3d_fullres")
    tiny = TINY.replace("= 2, 3, 2", "= 2, 12, 10")
    (tmp_path / "ext/nnUNetTrainerTiny.py").write_text(MEASURED + tiny)
    words = ("1", "3d_fullres", "0", "-tr", "nnUNetTrainerTiny", "-device", "cuda")
    out = made.run("run.run_training", "run_training_entry", *words)
    assert "one CUDA graph in place of" in out or "gradient scaler" in out
    assert "capturing failed" not in out
    assert "Training done." in out
