"""The wheel in an environment of its own, without the repository and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_trains_and_predicts(tmp_path: Path) -> None:
    venv, dist = tmp_path / "venv", tmp_path / "dist"
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(dist), str(ROOT))
    [wheel] = dist.glob("hasten-*.whl")
    run(sys.executable, "-m", "venv", str(venv))
    constraints = str(ROOT / "constraints.txt")
    [pin] = [line for line in Path(constraints).read_text().splitlines() if line.startswith("torch==")]
    for what in (pin, str(wheel)):
        run(str(venv / "bin/python"), "-m", "pip", "install", "-q", "-c", constraints, what)
    path = {"PATH": str(venv / "bin"), "HOME": str(tmp_path)}  # no g++ there
    hasten = str(venv / "bin/hasten")
    run(hasten, "phantom", "--out", "set", "--cases", "4", "--shape", "24", "48", "48", folder=tmp_path, **path)
    options = ("train.steps=6", "train.validate_every=6", "sample.patch=[16,32,32]")
    run(hasten, "train", "set", "--out", "run", *options, folder=tmp_path, **path)
    run(hasten, "predict", "run", "set/imagesTr", "--out", "masks", folder=tmp_path, **path)
    assert len(list((tmp_path / "masks").glob("*.nii.gz"))) == 4
    assert (tmp_path / "run/report.html").is_file()


def run(*words: str, folder: Path | None = None, **env: str) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "CXX", "VIRTUAL_ENV")}
    done = subprocess.run(words, cwd=folder, env={**kept, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
