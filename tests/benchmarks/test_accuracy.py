"""The benchmark of accuracy: its choices are settings, and its parts run end to end on phantoms."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.accuracy import CANDIDATES, CHOICES, GOALS, RECIPE, SPLIT, main
from benchmarks.ours.candidates import ScheduleFree, Soap, contexts, weighted_dice_ce
from hasten.config.load import load_run
from hasten.nets.losses import DiceCELoss


def test_each_choice_is_different() -> None:
    patched = contexts(Path())
    assert set(patched) < set(CANDIDATES)
    choices, every = set(), CHOICES | CANDIDATES | RECIPE
    for name, words in every.items():
        config = load_run(None, ["data.source=x", *SPLIT, *words.split()])
        text = json.dumps(dataclasses.asdict(config), default=str, sort_keys=True)
        choices.add((text, name if name in patched else ""))
    assert len(choices) == len(every)


@pytest.mark.parametrize("kind", [Soap, ScheduleFree])
def test_optimizers_that_are_tried_reach_the_minimum(kind: type[torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    weight, target = torch.nn.Parameter(torch.randn(12, 9, 3)), torch.randn(12, 9, 3)
    optimizer = kind([weight], lr=0.02)
    for _ in range(400):
        optimizer.zero_grad()
        (weight - target).square().sum().backward()
        optimizer.step()
    assert (weight - target).square().mean() < 0.1  # 2 at first


def test_losses_that_are_tried() -> None:
    scores, label = torch.randn(2, 3, 4, 5, 6), torch.randint(3, (2, 1, 4, 5, 6))
    usual: Any = {"include_background": False, "batch": True, "to_onehot_y": True, "softmax": True}
    plain = DiceCELoss(**usual)(scores, label)
    torch.testing.assert_close(DiceCELoss(label_smoothing=0.0, **usual)(scores, label), plain)
    torch.testing.assert_close(weighted_dice_ce(scores, label, 1.0), plain)
    sure = 10 * torch.nn.functional.one_hot(label[:, 0], 3).movedim(-1, 1).float()
    assert DiceCELoss(label_smoothing=0.1, **usual)(sure, label) > 0.1
    for budget in GOALS:
        assert load_run(None, ["data.source=x", f"train.budget={budget}"]).train.budget == budget


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path) -> None:
    main(["--quick", "--out", str(tmp_path), "--work", str(tmp_path / "work"), "--folds", "0,1"])
    [file] = tmp_path.glob("accuracy_*_quick.json")
    results = json.loads(file.read_text())["results"]
    assert len(results["folds/dice by fold"]["raw"]) == 2
    assert 0 <= results["folds/dice by case"]["median"] <= 1
    assert len(results["ensemble/dice of each seed"]["raw"]) == len(results["ensemble/dice by fold"]["raw"]) == 2
    assert results["ensemble/dice by case"]["n"] == results["folds/dice by case"]["n"]
    assert results["learning/base/dice"] == results["candidates/base/dice"]
    assert 0 <= results["recipe/500 steps/dice"]["median"] <= 1
    assert results["start/first_step_s"]["median"] > 0
