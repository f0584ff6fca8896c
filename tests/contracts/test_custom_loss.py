"""A loss of the user's in a run: trained with, resumed bit for bit, and recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.observe.rundir import METRICS_JSONL
from hasten.phantoms.organs import write_phantoms
from hasten.training.run import train
from tests.training.runs import assert_same_run, at_step, config_of, resumed

MONAI = "monai.losses.dice:DiceCELoss"
ARGS = "loss.args={to_onehot_y: true, softmax: true, include_background: false, batch: true}"
CODE = """
import torch.nn.functional as F


def entropy(scores, labels):
    return F.cross_entropy(scores, labels[:, 0])
"""
Make = Callable[..., RunConfig]


def from_python(scores: Tensor, labels: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(scores, labels[:, 0])


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    folder = tmp_path_factory.mktemp("loss")
    source = write_phantoms(folder / "set", num_cases=6, shape=(16, 24, 24))
    quiet = ("observe.trackers=[]", "observe.monitor_every=0")
    return lambda *overrides: config_of(source, folder / "cache", *quiet, *overrides)


def losses(run: Path) -> list[float]:
    rows = map(json.loads, (run / METRICS_JSONL).read_text().splitlines())
    return [row["loss"] for row in rows if row["kind"] == "train"]


def test_monais_loss_by_its_name_learns_as_the_built_in_one(make: Make, tmp_path: Path) -> None:
    train(make("train.steps=3", f"loss.name={MONAI}", ARGS), tmp_path / "monai")
    train(make("train.steps=3"), tmp_path / "hasten")
    # MONAI's cross-entropy and Hasten's count the background alike, and their Dice terms leave it out.
    assert losses(tmp_path / "monai") == pytest.approx(losses(tmp_path / "hasten"), rel=1e-4)


def test_it_is_resumed_bit_for_bit_and_goes_on_with_its_own_source(make: Make, tmp_path: Path) -> None:
    code = tmp_path / "losses.py"
    code.write_text(CODE)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(make(f"loss.name={code}:entropy"), whole)
    with pytest.raises(KeyboardInterrupt), at_step(7, "interrupt"):
        train(make(f"loss.name={code}:entropy"), stopped)
    code.write_text(CODE + "# another\n")
    with pytest.raises(ValueError, match=r"its source has changed since the run began \(loss\.digest="):
        train(resumed(stopped), stopped, resume=True)
    code.write_text(CODE)
    train(resumed(stopped), stopped, resume=True)
    assert_same_run(whole, stopped)
    assert len(load_run(whole / "run.yaml").loss.digest or "") == 64


def test_from_python(make: Make, tmp_path: Path) -> None:
    train(make("train.steps=2"), tmp_path / "run", loss=from_python)
    assert load_run(tmp_path / "run/run.yaml").loss.name.endswith("test_custom_loss:from_python")
    with pytest.raises(ValueError, match=r"^loss: .*has no name at the top of a file"):
        train(make(), tmp_path / "none", loss=lambda scores, labels: scores.mean())
    with pytest.raises(ValueError, match=r"^network\.weights: .*absent: no such file or run"):
        train(make(), tmp_path / "none", weights=tmp_path / "absent")
    assert not (tmp_path / "none").exists()
