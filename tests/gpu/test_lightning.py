"""A Lightning training on a GPU: batches are made there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hasten.lightning import HastenCallback, HastenDataModule
from hasten.report.read import read_run
from tests.lightning.parts import TINY, Small, phantoms, trainer


def test_a_fit_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    data = phantoms(tmp_path / "phantoms")
    on_host, on_gpu = Small(), Small()
    trainer(max_steps=40).fit(on_host, datamodule=HastenDataModule(data, TINY))
    module = HastenDataModule(data, TINY)
    callback = HastenCallback(tmp_path / "run")
    trainer(accelerator="gpu", devices=1, max_steps=40, precision="bf16-mixed", callbacks=[callback]).fit(
        on_gpu, datamodule=module
    )
    assert on_gpu.seen == pytest.approx(on_host.seen, rel=1e-4)
    assert read_run(tmp_path / "run").steps == 40


def test_a_batch_lies_on_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    module = HastenDataModule(phantoms(tmp_path / "phantoms", num_cases=3), [*TINY, "train.device=cuda"])
    batch = next(iter(module.train_dataloader()))
    case = next(iter(module.val_dataloader()))
    assert {value.device.type for value in (*batch.values(), case["image"], case["label"])} == {"cuda"}
    assert batch["image"].dtype == torch.float32
