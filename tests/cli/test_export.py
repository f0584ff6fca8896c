from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from hasten.cli.main import app


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, ["export", *map(str, words)])


def stand_in(patch: pytest.MonkeyPatch, **result: Any) -> list[tuple[Any, ...]]:
    """In place of the engine, which has tests of its own."""
    calls: list[tuple[Any, ...]] = []

    def export_weights(
        run: Path, out: Path, format: str | None, *, overwrite: bool, trust_changed_code: bool
    ) -> SimpleNamespace:
        calls.append((run, out, format, overwrite, trust_changed_code))
        return SimpleNamespace(path=out, **result)

    patch.setitem(sys.modules, "hasten.prediction.export", SimpleNamespace(export_weights=export_weights))
    return calls


def test_the_difference_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = stand_in(monkeypatch, format="onnx", difference=2.9e-6, scale=12.34)
    result = invoke("run", "--out", "model.onnx")
    assert result.exit_code == 0, result.output
    assert result.stdout == "model.onnx: differs from PyTorch by at most 2.9e-06 (scores up to 1.2e+01)\n"
    assert calls == [(Path("run"), Path("model.onnx"), None, False, False)]


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    result = invoke(tmp_path / "absent", "--out", tmp_path / "model.onnx")
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path / 'absent'}: no such run; name the folder of a training run, or its best.pt\n"
    )
