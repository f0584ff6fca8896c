"""`hasten scale predict`: what it prints and writes, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hasten.cli.scale import predict
from tests.study.scale.predict.sources import write_logs, write_run

app = typer.Typer()
app.command()(predict)


def shown(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def failing(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(result.exception, ValueError), result.output
    return str(result.exception)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", batch=64)


def test_logs_are_told_by_epochs_and_written(tmp_path: Path) -> None:
    folder = write_logs(tmp_path / "logs", {1: 100.0, 2: 54.0, 4: 28.0})
    output = shown(folder, "--workers", "8,1024", "--out", tmp_path / "out")
    assert "Epoch" in output
    assert "On 1,024 workers (weak scaling)" in output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"prediction.json", "prediction.html"}
    facts = json.loads((tmp_path / "out" / "prediction.json").read_text())
    assert [one["workers"] for one in facts["predictions"]] == [8, 1024]


def test_a_run_goes_by_the_named_links(run: Path, tmp_path: Path) -> None:
    fast = shown(run, "--inter", "ib400", "--intra", "nvlink4", "--adapters", 8, "--out", tmp_path / "fast")
    assert "Step" in fast
    assert "nvlink4 (3.4 us, 360 GB/s) inside, and by 8 x ib400" in fast
    shown(run, "--link", "eth1", "--out", tmp_path / "slow")
    results = [
        [one["efficiency"] for one in json.loads((tmp_path / name / "prediction.json").read_text())["predictions"]]
        for name in ("fast", "slow")
    ]
    assert len(results[0]) == 8
    assert all(one > other for one, other in zip(*results, strict=True))
    uneven = shown(run, "--link", "ib400", "--imbalance", "0.3", "--workers", "4", "--epochs", 1e6)
    assert "most is lost to uneven parts" in uneven


def test_a_batch_is_dealt_to_as_many_as_it_has_samples(run: Path) -> None:
    output = shown(run, "--link", "ib200", "--mode", "strong")
    assert "left out   more than 64 workers" in output
    assert "On 64 workers (strong scaling)" in output
    assert "--workers 128: a batch of 64 can't be dealt" in failing(
        run, "--link", "ib200", "--mode", "strong", "--workers", "8,128"
    )


def test_mistakes_are_named(run: Path, tmp_path: Path) -> None:
    assert "did you mean ib400" in failing(run, "--link", "ib40")
    assert "--inter ib40: no such link" in failing(run, "--inter", "ib40")
    assert "--intra nvlnk4: no such link; did you mean nvlink4" in failing(run, "--inter", "ib400", "--intra", "nvlnk4")
    assert "give one of them" in failing(run, "--link", "ib200", "--inter", "ib200")
    assert "--workers 8,x: give whole numbers" in failing(run, "--link", "ib200", "--workers", "8,x")
    assert "--workers 0: give whole numbers" in failing(run, "--link", "ib200", "--workers", "0")
    assert CliRunner().invoke(app, [str(run), "--link", "ib200", "--mode", "big"]).exit_code == 2
    assert "--epochs 0: give more than 0" in failing(run, "--link", "ib200", "--epochs", 0)
    assert "assumed to be ib200" in shown(run)
    assert "no such folder" in failing(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no log of a scaling study" in failing(tmp_path / "empty")
    assert "epochs on 1, 2 workers are too few" in failing(write_logs(tmp_path / "two", {1: 9.0, 2: 5.0}))
