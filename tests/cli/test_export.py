from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from hasten.cli.main import app


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(tmp_path / "absent"), "--out", str(tmp_path / "model.onnx")])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path / 'absent'}: no such run; name the folder of a training run, or its best.pt\n"
    )
