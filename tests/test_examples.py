"""The examples run as they are, on tiny phantoms; and what they take from `import hasten` costs nothing until used."""

from __future__ import annotations

import math
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import hasten
from hasten.cli.main import app
from hasten.config.load import load_run
from hasten.phantoms.organs import write_phantoms

EXAMPLES = Path(__file__).parents[1] / "examples"
TINY = [
    "train.device=cpu",
    "train.steps=2",
    "train.precision=fp32",
    "train.channels_last=false",
    "train.compile=false",
    "sample.patch=[16, 16, 16]",
    "sample.batch_size=2",
    "network.channels=[4, 8]",
    "network.strides=[[2, 2, 2]]",
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def phantoms(tmp_path: Path) -> Path:
    return write_phantoms(tmp_path / "phantoms", num_cases=5, shape=(16, 24, 24), spacing=(1.0, 1.0, 1.0))


def test_ten_lines(
    phantoms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = EXAMPLES / "train_in_ten_lines.py"
    code = [line for line in script.read_text().splitlines() if line and not line.startswith('"""')]
    assert len(code) <= 10
    monkeypatch.setattr(sys, "argv", [str(script), str(phantoms), str(tmp_path / "out"), *TINY])
    runpy.run_path(str(script), run_name="__main__")
    assert re.fullmatch(r"Dice \d\.\d{3} after \d+ s\n", capsys.readouterr().out)
    assert len(list((tmp_path / "out/labels").glob("*.nii.gz"))) == 5
    assert (tmp_path / "out/report.html").is_file()


def test_own_loop(phantoms: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [setting for setting in TINY if not setting.startswith(("train.steps", "network"))]
    main = runpy.run_path(str(EXAMPLES / "own_loop.py"))["main"]
    dice = main(str(phantoms), 20, *settings)
    assert 0 <= dice <= 1
    losses = [float(value) for value in re.findall(r"^step \d+  loss (\S+)$", capsys.readouterr().out, re.MULTILINE)]
    assert len(losses) == 2
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[1] < losses[0]


def test_monai_style(phantoms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(EXAMPLES / "monai_style.py"))["main"]
    dice = main(str(phantoms), 2, str(tmp_path / "out"), 16)
    assert 0 <= dice <= 1
    assert torch.load(tmp_path / "out/best.pt", weights_only=True)
    losses = re.findall(r"train_loss: (\S+)", capsys.readouterr().out)
    assert len(losses) == 4
    assert all(math.isfinite(float(loss)) for loss in losses)


def test_amp_loop(phantoms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [setting for setting in TINY if not setting.startswith(("train.", "network"))]
    main = runpy.run_path(str(EXAMPLES / "amp_loop.py"))["main"]
    ours, plain = (main(str(phantoms), 20, how, "train.device=cpu", *settings) for how in ("hasten", "plain"))
    assert ours == pytest.approx(plain, rel=1e-3)
    assert ours[1] < ours[0]
    assert "0 updates left out" in capsys.readouterr().out


def test_the_yaml(phantoms: Path, tmp_path: Path) -> None:
    settings = shutil.copy(EXAMPLES / "run.yaml", tmp_path / "run.yaml")
    tiny = [setting for setting in TINY if not setting.startswith("train.steps")]
    words = ["train", settings, "train.steps=2", *tiny, "--quiet", "--out", tmp_path / "out"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    made = load_run(tmp_path / "out/run.yaml")
    assert made.data.source == str(phantoms)
    assert made.train.steps == 2


def test_every_setting_that_the_yaml_leaves_open_can_be_set_as_it_shows(tmp_path: Path) -> None:
    text = (EXAMPLES / "run.yaml").read_text()
    opened = re.sub(r"^( +)#: ", r"\1", text, flags=re.MULTILINE)
    assert opened.count("\n  #") == 0
    (tmp_path / "run.yaml").write_text(opened)
    config = load_run(tmp_path / "run.yaml")
    closed = load_run(EXAMPLES / "run.yaml")
    assert (config.sample.patch, closed.sample.patch) == ((32, 32, 32), None)
    assert (config.train.target, closed.train.target) == (0.9, None)


def test_importing_hasten_loads_neither_torch_nor_monai() -> None:
    code = "import hasten, sys; hasten.load_run, hasten.RunConfig; print({'torch', 'monai'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_names_that_hasten_offers() -> None:
    assert set(hasten.__all__) <= set(dir(hasten))
    for name in hasten.__all__:
        assert getattr(hasten, name) is not None
    assert callable(hasten.train)
    assert callable(hasten.predict)
    with pytest.raises(AttributeError, match="has no attribute 'fit'"):
        _ = hasten.fit
