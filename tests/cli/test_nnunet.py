from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hasten.cli.main import app
from hasten.cli.nnunet import trainer_folder


def test_a_command_finds_the_trainers_and_train_takes_hastens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for verb in ("train", "predict"):
        program = tmp_path / f"nnUNetv2_{verb}"
        program.write_text(
            f"#!{sys.executable}\nimport os, sys\nprint(os.environ['nnUNet_extTrainer'], *sys.argv[1:])\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert CliRunner().invoke(app, ["nnunet", "train", "4", "3d_fullres", "0", "--c"]).exit_code == 0
    assert capfd.readouterr().out == f"{trainer_folder()} 4 3d_fullres 0 --c -tr nnUNetTrainerHasten\n"
    monkeypatch.setenv("nnUNet_extTrainer", "/mine")
    assert CliRunner().invoke(app, ["nnunet", "train", "4", "2d", "all", "-tr", "Mine"]).exit_code == 0
    assert capfd.readouterr().out == f"{trainer_folder()}:/mine 4 2d all -tr Mine\n"
    assert CliRunner().invoke(app, ["nnunet", "predict", "-i", "a"]).exit_code == 0
    assert capfd.readouterr().out == f"{trainer_folder()}:/mine -i a\n"


def test_a_command_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    result = CliRunner().invoke(app, ["nnunet", "trian", "4"])
    assert result.exit_code == 2
    assert "there is no command nnUNetv2_trian; install nnU-Net" in result.output
