from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from typer.testing import CliRunner

from hasten.cli.main import app


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, ["weights", "show", *map(str, words)])


def written(folder: Path) -> Path:
    net = nn.ModuleDict({"encoder": nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)), "head": nn.Conv2d(4, 2, 1)})
    torch.save({"state_dict": net.state_dict()}, folder / "net.pth")
    return folder / "net.pth"


def test_a_file_is_shown_by_module(tmp_path: Path) -> None:
    result = invoke(written(tmp_path))
    assert result.exit_code == 0, result.output
    first, *rows = result.stdout.splitlines()
    assert first == f"{tmp_path / 'net.pth'}: 9 tensors under state_dict, 67 numbers"
    assert [row.split() for row in rows] == [
        ["encoder.0", "2", "tensors", "40", "numbers", "float32"],
        ["encoder.1", "5", "tensors", "17", "numbers", "float32,", "int64"],
        ["head", "2", "tensors", "10", "numbers", "float32"],
    ]
    rows = invoke(written(tmp_path), "--depth", 1).stdout.splitlines()[1:]
    assert [row.split()[:2] for row in rows] == [["encoder", "7"], ["head", "2"]]


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for words in ((tmp_path / "absent.pt",), (tmp_path,), (written(tmp_path), "--run", tmp_path / "absent")):
        result = invoke(*words)
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
