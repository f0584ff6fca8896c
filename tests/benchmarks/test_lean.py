"""An environment with what Hasten needs and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import lean


def test_the_needs_of_a_package_come_with_it_and_its_extras_do_not() -> None:
    found = lean.closure(["monai>=1"])
    assert {"monai", "torch", "numpy", "sympy"} <= set(found)
    assert not {"mlflow", "pytest", "transformers"} & set(found)
    with pytest.raises(ValueError, match="no-such-package: is not installed"):
        lean.closure(["no_such_package"])


def test_its_python_finds_the_packages_and_this_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lean.main(["--to", str(tmp_path / "lean")])
    assert "torch" in capsys.readouterr().out
    program = (
        "import importlib.util as find, hasten; print(hasten.__file__);"
        "print([name for name in ('torch', 'yaml', 'pytest') if find.find_spec(name)])"
    )
    done = subprocess.run(
        [tmp_path / "lean/bin/python", "-I", "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    where, names = done.stdout.splitlines()
    assert Path(where) == lean.ROOT / "src/hasten/__init__.py"
    assert names == "['torch', 'yaml']"
    with pytest.raises(SystemExit):
        lean.main(["--to", str(tmp_path / "lean")])
    assert "is not empty" in capsys.readouterr().err
