"""Predicted scaling: the model's laws, and what logs and runs tell it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hasten.checkpoint.file import write_checkpoint
from hasten.cli.scale import app
from hasten.scaling.predict import (
    COMMUNICATION,
    COMPUTE,
    FIXED,
    SLOWEST,
    Mode,
    Source,
    Step,
    expected_maximum,
    fit_epochs,
    predict,
    source_of,
)
from tests.scaling.studies import csv_log

LOGS = Path(__file__).parents[4] / "shared" / "data" / "unet_scaling_logs"
WEIGHTS = 1_000_000
STEP = Step(mode="weak", compute_s=0.1, gradient_bytes=4e6, bytes_per_s=1e10, latency_s=1e-5, steps=1000.0)
MODES = st.sampled_from(["weak", "strong"])
STEPS = st.builds(
    Step,
    mode=MODES,
    compute_s=st.floats(1e-3, 10),
    spread=st.floats(0, 0.5),
    gradient_bytes=st.floats(0, 1e9),
    bucket_bytes=st.floats(1e5, 1e8),
    bytes_per_s=st.floats(1e9, 1e12),
    steps=st.floats(1, 1e4),
    validation_s=st.floats(0, 100),
    checkpoint_s=st.floats(0, 100),
    fixed_share=st.floats(0, 1),
)


def source(model: Step) -> Source:
    return Source(mode=model.mode, model=model, draws=[model], notes=())


@given(STEPS, st.integers(1, 2048))
def test_an_efficiency_is_a_share_and_what_is_lost_is_the_rest(step: Step, workers: int) -> None:
    one = predict(source(step), workers)
    assert 0 < one.efficiency <= 1 + 1e-9
    assert one.efficiency + sum(one.losses.values()) == pytest.approx(1)
    assert predict(source(step), 1).efficiency == pytest.approx(1)
    slower = replace(step, bytes_per_s=step.bytes_per_s / 2)
    assert predict(source(slower), workers).efficiency <= one.efficiency + 1e-9


@given(st.integers(1, 20), st.floats(1e-4, 1), st.floats(1e-4, 1))
def test_buckets_follow_one_another_as_a_simulation_has_it(count: int, backward: float, each: float) -> None:
    free = 0.0
    for number in range(count):
        free = max(free, (number + 1) * backward / count) + each
    step = replace(STEP, gradient_bytes=float(count), bucket_bytes=1.0, latency_s=each / 2, bytes_per_s=1e18)
    assert step.exposed_s(2, backward) == pytest.approx(free - backward)


@pytest.mark.parametrize(("num_bytes", "expected"), [(1e3, 16 * 1e-5), (1e10, 510 * 1e-5 + 510 / 256)])
def test_small_messages_go_by_a_tree_and_large_ones_around_a_ring(num_bytes: float, expected: float) -> None:
    step = replace(STEP, gradient_bytes=num_bytes, bucket_bytes=num_bytes)
    assert step.exposed_s(256, 0.0) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("workers", [1, 8, 1024])
def test_the_slowest_of_many_draws_is_as_slow_as_drawing_them_shows(workers: int) -> None:
    drawn = np.random.default_rng(0).standard_normal((4000, workers)).max(axis=1).mean()
    assert expected_maximum(workers) == pytest.approx(drawn, abs=0.04)


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({}, COMPUTE),
        ({"gradient_bytes": 4e8, "bytes_per_s": 1e8}, COMMUNICATION),
        ({"spread": 0.2}, SLOWEST),
        ({"checkpoint_s": 5.0}, FIXED),
        ({"mode": "strong"}, FIXED),
    ],
)
def test_what_limits_is_named(change: dict[str, Any], limit: str) -> None:
    assert predict(source(replace(STEP, **change)), 64).limit == limit


def _epoch(workers: int, mode: Mode, compute: float, sent: float, rest: float) -> float:
    factor = 2 * (workers - 1) / workers**2 if mode == "weak" else 2 * np.ceil(np.log2(workers))
    return compute / workers + sent * factor + rest


@settings(max_examples=10)
@given(st.floats(10, 500), st.floats(0, 100), st.floats(0, 20), MODES)
def test_an_epoch_s_shares_are_recovered_from_counts(compute: float, sent: float, rest: float, mode: Mode) -> None:
    shares = (compute, sent if mode == "weak" else sent / 100, rest)
    fitted = fit_epochs({workers: _epoch(workers, mode, *shares) for workers in (1, 2, 4, 8, 16)}, mode)
    for workers in (1, 2, 3, 64):
        one = predict(fitted, workers)
        assert one.epoch_s == pytest.approx(_epoch(workers, mode, *shares), rel=1e-3, abs=1e-3)
        assert one.efficiency_range[0] <= one.efficiency <= one.efficiency_range[1]
        assert one.epoch_range[0] < one.epoch_s < one.epoch_range[1]


def write_logs(folder: Path, epochs: Mapping[int, float], infix: str = "") -> Path:
    """One CSV a count of workers, whose epochs take these seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    for workers, seconds in epochs.items():
        csv_log(folder, f"log_{infix}{workers}.csv", seconds)
    return folder


def write_run(folder: Path, *, jitter: float = 0.0, lines: int = 9, checkpoint: bool = True) -> Path:
    """A finished run of one process: batches of 64, 10 steps between lines of 0.2 s, a jitter more or less in turn."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "run.yaml").write_text(
        f"data: {{source: {folder}}}\nsample: {{batch_size: 64}}\ndistribute: {{gradients: fp16, bucket_mb: 5}}\n"
    )
    with (folder / "metrics.jsonl").open("w") as file:
        for line in range(lines):
            seconds = 50.0 if line == 0 else 0.2 * (1 + jitter * (-1) ** line)
            record = {"kind": "train", "step": 10 * (line + 1), "time_s": 10.0 * line, "samples_per_s": 64 / seconds}
            file.write(json.dumps(record) + "\n")
    summary = {
        "status": "finished",
        "steps": 10 * lines,
        "cases": {"train": 640, "validation": 8},
        "seconds": {"total": 30.0, "train": 18.0, "validate": 4.5, "checkpoint": 0.9},
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    if checkpoint:
        weights = {"weight": torch.zeros(WEIGHTS), "count": torch.zeros(1, dtype=torch.long)}
        write_checkpoint(folder / "checkpoints" / "last.pt", {"network": weights})
    return folder


def test_a_run_tells_its_step_its_spread_and_its_gradients(tmp_path: Path) -> None:
    result = source_of(write_run(tmp_path / "run", jitter=0.01), link=22.5, mode="strong")
    step = result.model
    assert isinstance(step, Step)
    assert step.compute_s == pytest.approx(0.2, rel=0.011)
    # Means over 10 steps that differ by 2 % of 0.2 s, back and forth: independent steps differ by more.
    assert step.spread == pytest.approx(0.02 * 5**0.5, rel=0.05)
    assert (step.gradient_bytes, step.bucket_bytes, step.steps) == (2 * WEIGHTS, 5 * 2**20, 10)
    assert step.bytes_per_s == pytest.approx(22.5e9)
    assert (step.validation_s, step.checkpoint_s) == (pytest.approx(0.5), pytest.approx(0.1))
    one = predict(result, 8)
    assert one.efficiency_range[0] < one.efficiency < one.efficiency_range[1]


@pytest.mark.skipif(not LOGS.is_dir(), reason="the 16 logs are not here")
def test_fourteen_gpus_are_predicted_from_four(tmp_path: Path) -> None:
    """Within 10 % for both strategies of the study, from logs of 1, 2 and 4 GPUs alone."""
    for infix, measured in (("", 16.16), ("hvd_", 32.49)):
        folder = tmp_path / f"logs-{infix}"
        folder.mkdir()
        for workers in (1, 2, 4):
            name = f"log_{infix}{workers}.csv"
            (folder / name).write_bytes((LOGS / name).read_bytes())
        assert predict(source_of(folder), 14).epoch_s == pytest.approx(measured, rel=0.10)


def test_logs_and_a_run_by_the_command(tmp_path: Path) -> None:
    folder = write_logs(tmp_path / "logs", {1: 100.0, 2: 54.0, 4: 28.0})
    write_logs(folder, {1: 100.0, 2: 80.0, 4: 60.0}, "hvd_")
    run = write_run(tmp_path / "run")
    for arguments in ([folder, "--workers", "8,1024"], [run, "--link", "0.1"]):
        done = CliRunner().invoke(app, ["predict", *map(str, arguments)])
        assert done.exit_code == 0, done.exception
        assert "Efficiency" in done.output
    near, far = (predict(source_of(run, link=link), 8).efficiency for link in (300.0, 0.1))
    assert near > far


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--workers", "8,x"], "--workers: 'x' is no whole number"),
        (["run", "--workers", "0"], "--workers 0: give whole numbers"),
        (["two"], "are too few to fit"),
        (["slow"], "epochs don't get shorter"),
        (["empty"], "holds no log of a scaling study"),
        (["nowhere"], "no such folder"),
        (["short"], "the pace of 3 stretches"),
        (["bare"], "has no checkpoint"),
        (["ranks"], "must be a run of one process"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, arguments: list[str], message: str) -> None:
    write_logs(tmp_path / "two", {1: 9.0, 2: 5.0})
    write_logs(tmp_path / "slow", {1: 1.0, 2: 2.0, 4: 8.0})
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run")
    write_run(tmp_path / "short", lines=3)
    write_run(tmp_path / "bare", checkpoint=False)
    summary = write_run(tmp_path / "ranks") / "summary.json"
    summary.write_text(json.dumps({**json.loads(summary.read_text()), "world": {"size": 2, "strategy": "ddp"}}))
    result = CliRunner().invoke(app, ["predict", str(tmp_path / arguments[0]), *arguments[1:]])
    assert isinstance(result.exception, ValueError), result.output
    assert message in str(result.exception)
