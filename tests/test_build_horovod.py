"""The script that builds Horovod: what it changes in the source, and what it says before it begins."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def script() -> ModuleType:
    path = Path(__file__).parents[1] / "tools/build_horovod.py"
    spec = importlib.util.spec_from_file_location("build_horovod", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _source(folder: Path, line: str) -> Path:
    (folder / "horovod/torch").mkdir(parents=True)
    for name in ("CMakeLists.txt", "horovod/torch/CMakeLists.txt"):
        (folder / name).write_text(f"project(horovod)\n    {line}\nadd_library(x)\n")
    return folder


def test_both_parts_become_cpp17_and_nothing_else_changes(tmp_path: Path, script: ModuleType) -> None:
    source = _source(tmp_path, "set(CMAKE_CXX_STANDARD 14)")
    script.patch(source)
    for name in script.PATCHED:
        assert (source / name).read_text() == "project(horovod)\n    set(CMAKE_CXX_STANDARD 17)\nadd_library(x)\n"


def test_missing_tools_are_named_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(script, "works", lambda: False)
    monkeypatch.setattr(script, "pip", lambda *words: pytest.fail(f"pip {words}"))
    assert script.main() == 1
    assert "cmake, make, g++ not found" in capsys.readouterr().err
