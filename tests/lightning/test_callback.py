"""The callback under real Trainers: a run directory that watch and report read."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.profilers import SimpleProfiler
from torch.utils.data import DataLoader
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.lightning import HastenCallback, HastenDataModule
from hasten.observe.rundir import read_jsonl
from hasten.report.read import read_run
from tests.lightning.parts import TINY, Small, phantoms, trainer
from tests.lightning.test_data import _own_cache  # noqa: F401


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phantoms(tmp_path_factory.mktemp("data") / "phantoms", num_cases=5)


def fit(data: Path, out: Path, *, ckpt_path: str | None = None, **options: Any) -> pl.Trainer:
    callback = HastenCallback(out, log_every=2, monitor_every=0.05)
    callbacks = [callback, *options.pop("callbacks", [])]
    model = options.pop("model", None) or Small()
    runner = trainer(callbacks=callbacks, **options)
    runner.fit(model, datamodule=HastenDataModule(data, TINY), ckpt_path=ckpt_path, weights_only=False)
    return runner


def test_a_run_directory_that_watch_and_report_read(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    runner = fit(data, out, max_epochs=4)
    assert runner.global_step == 8  # 3 cases, 2 in a batch
    run = read_run(out)
    assert (run.status, run.steps, run.earlier_s) == ("finished", 8, 0)
    assert [record.step for record in run.train] == [2, 4, 6, 8]
    assert all(record.loss is not None and record.samples_per_s is not None for record in run.train)
    assert [record.step for record in run.validations] == [2, 4, 6, 8]
    assert run.best_score == max(record.score for record in run.validations)
    assert {"train", "validate", "wait_for_data"} <= set(run.seconds)
    assert run.machine is not None
    assert "steps: 8" in run.config
    assert (out / "report.html").stat().st_size > 10_000
    watched = CliRunner().invoke(app, ["watch", str(out), "--once"])
    assert watched.exit_code == 0, watched.output
    assert "8 of 8" in watched.output or "8/8" in watched.output
    reported = CliRunner().invoke(app, ["report", str(out), "--out", str(tmp_path / "page.html")])
    assert reported.exit_code == 0, reported.output


class Slow(torch.utils.data.Dataset):
    """Items that take longer than the step."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        time.sleep(0.3)
        return {"image": torch.rand(1, 8, 8, 8), "label": torch.zeros(1, 8, 8, 8, dtype=torch.uint8)}


def test_the_wait_for_ones_own_loader_is_measured_and_the_trainers_profiler_still_listens(tmp_path: Path) -> None:
    profiler = SimpleProfiler()
    runner = trainer(max_epochs=1, callbacks=[HastenCallback(tmp_path / "run")], profiler=profiler)
    runner.fit(Small(), DataLoader(Slow(), batch_size=1))
    assert runner.profiler is profiler
    assert len(profiler.recorded_durations["run_training_batch"]) == 4
    assert read_run(tmp_path / "run").seconds["wait_for_data"] >= 4 * 0.3
    assert "train: {steps: 4}" in (tmp_path / "run/run.yaml").read_text().replace("\n  ", " {").replace("\n", "}")


def test_gone_on_with_in_the_same_folder(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    saving = ModelCheckpoint(tmp_path / "kept", filename="{step}", every_n_train_steps=2, save_top_k=-1)
    fit(data, out, max_epochs=3, callbacks=[saving], enable_checkpointing=True)
    first = read_jsonl(out / "metrics.jsonl")
    fit(data, out, max_epochs=5, ckpt_path=str(tmp_path / "kept/step=4.ckpt"))
    lines = [(line["kind"], line["step"]) for line in read_jsonl(out / "metrics.jsonl")]
    assert [step for kind, step in lines if kind == "train"] == [2, 4, 6, 8, 10]
    times = [line["time_s"] for line in read_jsonl(out / "metrics.jsonl") if line["kind"] == "train"]
    assert times == sorted(times)
    assert times[0] == first[0]["time_s"]
    run, first_line = read_run(out), first[1]
    assert run.steps == 10
    assert first_line["time_s"] < run.earlier_s < run.total_s
    trained_s = run.seconds["train"] + run.seconds["wait_for_data"]
    assert run.samples_per_s * trained_s == pytest.approx(10 * 2)  # of both processes


def test_a_training_that_fails_is_told(data: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="cable"):
        fit(data, tmp_path, max_epochs=3, model=Small(stop_at=4))
    run = read_run(tmp_path)
    assert (run.status, run.steps) == ("failed", 3)


def test_a_folder_of_another_run_is_left_alone(data: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"holds a run already \(metrics\.jsonl\).*ckpt_path"):
        fit(data, tmp_path, max_epochs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    with pytest.raises(ValueError, match="cannot be made"):
        fit(data, tmp_path / "metrics.jsonl" / "run", max_epochs=1)
    with pytest.raises(ValueError, match="log_every=0"):
        HastenCallback(tmp_path, log_every=0)
