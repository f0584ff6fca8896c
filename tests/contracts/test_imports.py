"""What must start without torch, in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.phantoms.organs import write_phantoms

PROBE = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
for module in pkgutil.iter_modules(getattr(package, "__path__", []), package.__name__ + "."):
    importlib.import_module(module.name)
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def top_level_modules(name: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", PROBE, name], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ["hasten.config", "hasten.observe", "hasten.cli"])
def test_starts_without_torch_and_monai(name: str) -> None:
    loaded = top_level_modules(name)
    assert "hasten" in loaded
    assert not loaded & {"torch", "monai", "ignite", "matplotlib"}


def test_the_command_line_starts_without_what_only_a_verb_needs() -> None:
    assert not top_level_modules("hasten.cli.main") & {"pydantic", "yaml", "numpy", "nibabel"}


@pytest.mark.parametrize("name", ["unet", pytest.param("plainconvunet", marks=pytest.mark.slow)])
def test_a_plan_is_made_without_monai(tmp_path: Path, name: str) -> None:
    source = write_phantoms(tmp_path / "set", num_cases=4, shape=(1, 32, 32))
    words = ["plan", str(source), "--out", str(tmp_path / "plan.json"), f"cache.dir={tmp_path}", f"network.name={name}"]
    code = (
        "import sys; from typer.testing import CliRunner; from hasten.cli.main import app\n"
        "done = CliRunner().invoke(app, sys.argv[1:]); assert done.exit_code == 0, done.output\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"monai", "ignite", "matplotlib", "mlflow"}
    assert json.loads((tmp_path / "plan.json").read_text())["network"]["parameters"] > 0
