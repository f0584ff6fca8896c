"""What must start without torch, in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
