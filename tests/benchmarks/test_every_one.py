"""Every module of the benchmarks can be imported, each program has a help text, and quick runs write their claims."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

import benchmarks

MODULES = [
    module.name
    for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")
    if not module.name.endswith("__main__")
]
PROGRAMS = sorted(
    path.stem for path in Path(benchmarks.__path__[0]).glob("*.py") if "def main(argv" in path.read_text()
)
OPTIONAL = {"augments.batchgenerators_arm": "batchgeneratorsv2", "augments.torchio_arm": "torchio"}


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    if (package := OPTIONAL.get(name.removeprefix("benchmarks."))) is not None:
        pytest.importorskip(package)
    importlib.import_module(name)


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
    assert all(row["n"] and row["min"] >= 0 for row in record["results"].values())
    assert all({"name", "value", "goal", "holds"} == set(claim) for claim in record["claims"])
