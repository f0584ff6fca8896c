from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from hasten.cli.scale import app
from hasten.scaling import study
from tests.scaling.studies import csv_log, entry, list_runs, run_folder


def scale(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def error(*arguments: object) -> str:
    result = scale(*arguments)
    assert isinstance(result.exception, ValueError), result.output
    return str(result.exception)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for world, seconds in ((1, 40.0), (2, 21.0), (4, 11.0)):
        csv_log(folder, f"log_{world}.csv", seconds, iou=0.9 - 0.03 * world, first_s=seconds)
        csv_log(folder, f"log_hvd_{world}.csv", 1.2 * seconds)
    return folder


def test_analyse_prints_and_writes_where_it_is_told(logs: Path, tmp_path: Path) -> None:
    before = sorted(logs.iterdir())
    result = scale("analyse", logs)
    assert result.exit_code == 0, result.output
    assert "native wins" in result.output
    assert "3.64x" in result.output
    assert "native: IoU falls by 0.090 at 4 workers" in " ".join(result.output.split())
    assert sorted(logs.iterdir()) == before
    result = scale("analyse", logs, "--out", tmp_path / "new" / "out")
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in (tmp_path / "new" / "out").iterdir())
    assert names == ["scaling.html", "scaling.json"]
    assert "page       " in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--worlds", "1,two"], "--worlds: 'two' is no whole number"),
        (["--worlds", ""], "--worlds: must name at least one"),
        (["--worlds", "1", "--seeds", "-1"], "--seeds: '-1' is no whole number"),
        (["--worlds", "1", "--strategies", "ddp,magic"], "--strategies magic: must be of"),
        (["--worlds", "1"], "no such file"),
    ],
)
def test_mistakes_of_a_study(tmp_path: Path, options: list[str], message: str) -> None:
    assert message in error(tmp_path / "run.yaml", *options)


def test_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainings are stood for; what reaches them, what is printed and the exit code are not."""
    asked: list[Any] = []

    def stand_in(config: Any, out: Path, wanted: Any, *, echo: Any) -> list[dict[str, Any]]:
        asked.append((config, out, wanted))
        run_folder(out / "one", samples_per_s=10.0)
        run_folder(out / "two", samples_per_s=19.0, world=2, strategy="ddp", dice=(0.4, 0.6))
        entries = [entry("one", 1), entry("two", 2), entry("four", 4, status="failed", why="no room")]
        list_runs(out, entries)
        return entries

    monkeypatch.setattr(study, "run_study", stand_in)
    yaml = tmp_path / "run.yaml"
    yaml.write_text(f"data: {{source: {tmp_path}}}\ntrain: {{warmup_fraction: 0}}\n")
    out = tmp_path / "out"
    options = ("--worlds", "1,2, 4", "--mode", "weak", "--seeds", "3,4", "--out", out, "--target", 0.5)
    result = scale(yaml, "train.steps=30", "train.schedule=step", *options)
    assert result.exit_code == 1, result.output
    ((config, folder, wanted),) = asked
    assert folder == out
    assert (wanted.worlds, wanted.seeds, wanted.mode, wanted.strategies) == ((1, 2, 4), (3, 4), "weak", ("ddp",))
    assert (config.train.steps, config.train.schedule) == (30, "step")
    assert "1.90x" in result.output
    assert "four: failed (no room), so it is left out." in result.output
    assert "To mean Dice 0.5" in (out / "scaling.html").read_text()
    assert (out / "scaling.json").is_file()
