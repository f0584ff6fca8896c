"""What the benchmarks import is there, each program has a help text, and quick runs write their claims."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

import benchmarks

PROGRAMS = sorted(
    path.stem for path in Path(benchmarks.__path__[0]).glob("*.py") if "def main(argv" in path.read_text()
)


def test_every_name_that_they_import_is_there() -> None:
    """Also within functions, where most of them import what they measure."""
    names = {
        (node.module, each.name)
        for path in Path(benchmarks.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(("hasten", "benchmarks"))
        for each in node.names
    }
    assert len(names) > 400
    for module, name in sorted(names):
        if not hasattr(importlib.import_module(module), name):
            importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("name", PROGRAMS)
def test_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


QUICK = {
    "accuracy": {"folds/dice by fold", "ensemble/dice of each seed", "start/first_step_s"},
    "networks": {"steps/unet/overhead"},
    "pathology": {"reading/tifffile_tiles_per_s", "epoch/hasten_epoch_s", "epoch/monai_epoch_s"},
    "predict": {"end/hasten_s", "end/monai_s", "memory/resampled/mib"},
}
"""Series of the results of quick runs without data."""


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_quick_run(name: str, tmp_path: Path) -> None:
    importlib.import_module(f"benchmarks.{name}").main(["--quick", "--out", str(tmp_path)])
    [file] = tmp_path.glob(f"{name}*_quick.json")
    record = json.loads(file.read_text())
    assert set(record["results"]) >= QUICK[name]
    assert all(row["n"] for row in record["results"].values())
    assert all({"name", "value", "goal", "holds"} == set(claim) for claim in record["claims"])
