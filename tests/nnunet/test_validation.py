"""Validation with several batches in a pass of the network against batch by batch."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("nnunetv2.training.loss.compound_losses")

from hasten.config.decision import Accelerator
from hasten.nnunet import validation as module
from hasten.nnunet.loss import hard_counts, objective
from hasten.nnunet.step import evaluate, make_step
from hasten.training.step import TrainStep
from tests.nnunet.test_loss import default
from tests.nnunet.test_step import CPU, batch, loss, network, setting, sgd

BATCHES = 7
COUNTS = partial(hard_counts, regions=False, ignore=None)


def step_of(tmp_path: Path, objective_of: Any) -> TrainStep:
    net = network()
    step, _ = make_step(net, objective(objective_of), sgd(net), setting(tmp_path), CPU)
    net.eval()
    return step


def validation(step: TrainStep, tmp_path: Path) -> module.Validation:
    return module.Validation(step, setting(tmp_path), COUNTS)


@torch.no_grad()
def outputs(each: module.Validation) -> list[dict[str, Tensor]]:
    """Of an epoch whose loader uses its memory again."""
    image, target = (torch.empty_like(part) for part in batch(0))
    results = []
    for number in range(BATCHES):
        for part, other in zip((image, target), batch(number), strict=True):
            part.copy_(other)
        results.append(each(image, target))
    each.finish()
    return results


def assert_same(results: list[dict[str, Tensor]], wanted: list[dict[str, Tensor]]) -> None:
    for left, right in zip(results, wanted, strict=True):
        assert torch.equal(left["counts"], right["counts"])
        torch.testing.assert_close(left["loss"], right["loss"], rtol=1e-5, atol=1e-5)


def single(step: TrainStep) -> list[dict[str, Tensor]]:
    results = []
    with torch.no_grad():
        for number in range(BATCHES):
            image, target = batch(number)
            [(value, scores)] = evaluate(step, [(image, target)])
            results.append({"loss": value, "counts": COUNTS(scores, target)})
    return results


def counted(monkeypatch: pytest.MonkeyPatch, largest: int = module.PER_PASS) -> list[int]:
    """Batches of each pass; memory is short for more than `largest`."""
    passes: list[int] = []

    def observed(step: TrainStep, batches: Any) -> Any:
        passes.append(len(batches))
        if len(batches) > largest:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return evaluate(step, batches)

    monkeypatch.setattr(module, "evaluate", observed)
    return passes


@pytest.mark.parametrize("batch_dice", [False, True])
def test_each_batch_has_its_own_loss_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_dice: bool
) -> None:
    """Also where the Dice is that of a whole batch, and for the rest of an epoch."""
    step, passes = step_of(tmp_path, default(batch_dice) if batch_dice else loss()), counted(monkeypatch)
    if batch_dice:
        step.network.decoder.deep_supervision = False  # type: ignore[union-attr]
    several = validation(step, tmp_path)
    several.accelerator = Accelerator(True, "measured", "")
    assert_same(outputs(several), single(step))
    assert passes == [4, 3]


@pytest.mark.parametrize("faster", [False, True])
def test_the_first_batches_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faster: bool) -> None:
    monkeypatch.setattr(module, "_why_not", lambda step, setting: None)
    monkeypatch.setattr(module, "certainly_faster", lambda comparison, arm, device: faster and arm == "together")
    step = step_of(tmp_path, loss())
    each = validation(step, tmp_path)
    passes = counted(monkeypatch)
    assert_same(outputs(each), single(step))
    assert each.accelerator.on is faster
    assert each.accelerator.reason.startswith("4 batches take ")
    assert {1, 4} <= set(passes)
    assert passes[-2:] == ([4, 3] if faster else [1, 1])
    passes.clear()
    outputs(each)
    assert passes == ([4, 3] if faster else [1] * BATCHES)


@pytest.mark.parametrize("undecided", [False, True])
def test_a_lack_of_memory_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undecided: bool) -> None:
    monkeypatch.setattr(module, "_why_not", lambda step, setting: None if undecided else "set here")
    step = step_of(tmp_path, loss())
    each, passes = validation(step, tmp_path), counted(monkeypatch, largest=1)
    each.accelerator = Accelerator(not undecided, "measured", "")
    assert_same(outputs(each), single(step))
    assert passes == [4, *[1] * BATCHES]
    assert each.accelerator == Accelerator(False, "measured", "memory is short for 4 batches")
