"""The example runs as it is, is gone on with, and imports nothing of Lightning before it must."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.lightning.data import lightning_package
from hasten.report.read import read_run
from tests.lightning.parts import TINY, phantoms

SCRIPT = Path(__file__).parents[2] / "examples/lightning_script.py"


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    data, out = phantoms(tmp_path / "phantoms", num_cases=5), tmp_path / "run"
    main = runpy.run_path(str(SCRIPT))["main"]
    settings = (*TINY, "train.device=cpu")
    assert 0 <= main(str(data), 1, str(out), *settings) <= 1
    assert read_run(out).steps == 2
    main(str(data), 2, str(out), *settings)
    run = read_run(out)
    assert (run.status, run.steps) == ("finished", 4)
    assert [record.step for record in run.validations] == [2, 4]
    assert (out / "report.html").is_file()


def test_lightning_is_imported_when_it_is_used() -> None:
    code = "import hasten.lightning, sys; print({'torch', 'lightning', 'pytorch_lightning'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_without_lightning_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("lightning", "pytorch_lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=r"hasten\.lightning needs .*pip install 'hasten\[lightning\]'"):
        lightning_package()
