from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from hasten.phantoms.organs import write_phantoms
from hasten.prediction.predict import predict
from hasten.runtime.device import current_device
from hasten.training.run import train
from tests.training.runs import config_of


def test_a_numbered_gpu_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[int | None] = []

    def block(index: int | None) -> AbstractContextManager[None]:
        set_to.append(index)
        return nullcontext()

    monkeypatch.setattr(torch.accelerator, "device_index", block)
    for name in ("cpu", "cuda", "cuda:1", "mps:0"):
        with current_device(torch.device(name)):
            pass
    assert set_to == [None, None, 1, None]


def test_training_and_prediction_make_their_device_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton launches its kernels on no other."""
    seen: list[str] = []

    def block(device: torch.device) -> AbstractContextManager[None]:
        seen.append(str(device))
        return nullcontext()

    for where in ("training.run", "prediction.model", "prediction.predict"):
        monkeypatch.setattr(f"hasten.{where}.current_device", block)
    source = write_phantoms(tmp_path / "set", num_cases=3, shape=(16, 16, 16))
    train(config_of(source, tmp_path / "cache", "train.steps=1"), tmp_path / "run")
    predict(tmp_path / "run", source / "imagesTr" / "phantom_000.nii.gz", tmp_path / "out", device="cpu")
    assert seen == ["cpu", "cpu", "cpu"]


class Current(Exception):
    """A device was made the current one."""


@pytest.mark.parametrize(
    "name",
    [
        "doctor.profile.take.take",
        "doctor.run.doctor.diagnose_run",
        "doctor.tune.tune",
        "training.choose.budget.make_plan",
    ],
)
def test_what_measures_a_run_makes_its_device_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Else it would measure other kernels than the run has."""

    def block(device: torch.device) -> AbstractContextManager[None]:
        raise Current

    module, _, function = f"hasten.{name}".rpartition(".")
    monkeypatch.setattr(f"{module}.current_device", block)
    config = config_of(tmp_path / "set", tmp_path / "cache")
    given = {"take": {"steps": 1}, "tune": {"out": tmp_path / "out"}}.get(function, {})
    with pytest.raises(Current):
        getattr(importlib.import_module(module), function)(config, **given)
