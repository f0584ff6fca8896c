"""`hasten profile`: its mistakes, its files, and Nsight's command."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hasten.cli.doctor import profile
from hasten.config.load import dump_run
from hasten.phantoms.organs import write_phantoms
from tests.training.runs import SETTINGS, config_of

app = typer.Typer()
app.command()(profile)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("set") / "set", num_cases=6, shape=(16, 24, 24))


def failing(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert isinstance(result.exception, ValueError), result.output
    return str(result.exception)


def test_mistakes_are_named_before_anything_runs(source: Path, tmp_path: Path) -> None:
    assert "no such file or folder" in failing(tmp_path / "nowhere")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "summary.json").write_text("mine")
    assert "is not empty" in failing(source, "--out", tmp_path / "old")
    assert (tmp_path / "old" / "summary.json").read_text() == "mine"


def test_a_run_s_folder_is_left_as_it_was(source: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.yaml").write_text(dump_run(config_of(source, tmp_path / "cache")))
    (run / "summary.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    assert "is not empty" in failing(run, "--out", run)
    out = tmp_path / "profile"
    result = CliRunner().invoke(app, [str(run), "--out", str(out), "--steps", "1"])
    assert result.exit_code == 0, result.output
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert {path.name for path in out.iterdir()} == {"summary.json", "trace.json", "profile.html"}
    assert "trace.json" in result.output


def test_under_nsight_torch_s_profiler_keeps_away(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hasten.observe import ranges

    monkeypatch.setattr(ranges, "NVTX", True)
    out = tmp_path / "out"
    settings = [*SETTINGS, f"cache.dir={tmp_path / 'cache'}"]
    result = CliRunner().invoke(app, [str(source), *settings, "--steps", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "marked for Nsight" in result.output
    assert not out.exists()
