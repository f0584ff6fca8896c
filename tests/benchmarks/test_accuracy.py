"""The benchmark of accuracy: its choices are settings, and its parts run end to end on phantoms."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import hasten
from benchmarks.accuracy import CANDIDATES, CHOICES, GOALS, RECIPE, SAMPLING, SPLIT, TINY, main
from benchmarks.data import phantoms
from benchmarks.ours.candidates import ScheduleFree, Soap, contexts, weighted_dice_ce
from hasten.augment.draw import Draws
from hasten.augment.program import Segment
from hasten.config.load import load_run
from hasten.nets.losses import DiceCELoss


def test_each_choice_is_different() -> None:
    patched = contexts(Path())
    assert set(patched) < set(CANDIDATES | SAMPLING)
    choices, every = set(), CHOICES | CANDIDATES | SAMPLING | RECIPE
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


def draws_of(choice: str, steps: int, folder: Path) -> list[Draws]:
    """What a small run draws with this choice of sampling: 5 training cases, batches of 2."""
    data, made = phantoms(folder / "set", 6, {"shape": (16, 20, 16)}), list[Draws]()
    drawn = Segment.drawn

    def recorded(segment: Segment, sample: Tensor) -> Draws:
        made.append(drawn(segment, sample))
        return made[-1]

    few = ("sample.batch_size=2", f"train.steps={steps}", f"train.validate_every={steps}", "train.channels_last=false",
           "train.precision=fp32", "observe.trackers=[]", "observe.monitor_every=0")  # fmt: skip
    settings = [f"data.source={data}", f"cache.dir={folder / 'cache'}", "data.split.fraction=0.17", *few, *TINY]
    with contexts(data)[choice](), mock.patch.object(Segment, "drawn", recorded):
        hasten.train(load_run(None, [*settings, *SAMPLING[choice].split()]), folder / "run")
    return made


def test_cases_are_mirrored_in_turn(tmp_path: Path) -> None:
    signs: dict[int, list[Tensor]] = {}
    for draws in draws_of("mirrored in turn", 10, tmp_path):
        linear = next(iter(draws.stages[0].maps.values())).linear  # type: ignore[union-attr]
        for case, one in zip(draws.case.tolist(), linear.diagonal(dim1=1, dim2=2).sign(), strict=True):
            signs.setdefault(case, []).append(one)
    assert len(signs) == 5
    for every in signs.values():
        assert len(every) >= 4
        assert all(torch.equal(one, -before) for before, one in itertools.pairwise(every))


def test_hard_cases_come_more_often(tmp_path: Path) -> None:
    *_, last = draws_of("hard cases more often", 100, tmp_path)
    assert len(set(last.case[last.sample % 2 == 1].tolist())) == 1
    assert len(set(last.case[last.sample % 2 == 0].tolist())) > 1


@pytest.mark.slow
def test_a_quick_run(tmp_path: Path) -> None:
    main(["--quick", "--out", str(tmp_path), "--work", str(tmp_path / "work"), "--folds", "0,1"])
    [file] = tmp_path.glob("accuracy_*_quick.json")
    results = json.loads(file.read_text())["results"]
    assert len(results["folds/dice by fold"]["raw"]) == 2
    assert 0 <= results["folds/dice by case"]["median"] <= 1
    assert len(results["ensemble/dice of each seed"]["raw"]) == len(results["ensemble/dice by fold"]["raw"]) == 2
    assert results["ensemble/dice by case"]["n"] == results["folds/dice by case"]["n"]
    assert results["learning/base/dice"] == results["candidates/base/dice"] == results["sampling/base/dice"]
    assert 0 <= results["recipe/500 steps/dice"]["median"] <= 1
    assert results["start/first_step_s"]["median"] > 0
