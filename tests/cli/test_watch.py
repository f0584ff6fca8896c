"""`hasten watch`, on its own app."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hasten.cli.view import watch
from tests.observe.monitor.series import series, start, write

app = typer.Typer()
app.command()(watch)


def test_a_run_to_come_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    to_come, slept = tmp_path / "run", list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            to_come.mkdir()
            (to_come / "run.yaml").write_text("train:\n  steps: 400\n")
            write(to_come / "monitor.jsonl", series(60), before=[start()])

    monkeypatch.setattr(time, "sleep", sleep)
    done = CliRunner().invoke(app, [str(to_come), "--every", "7"])
    assert done.exit_code == 0, done.output
    assert slept == [7, 7]
    assert f"{to_come}: does not exist yet; waiting" in done.output
    assert "step 118/400" in done.output
