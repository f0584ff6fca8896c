"""The core of the command line on systems that lack what Linux has: `site/sitecustomize.py` hides it from Hasten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hasten.observe.rundir import read_jsonl

ROOT = Path(__file__).parents[2]
OTHER = "win32" if sys.platform == "linux" else ""
"""A system that is made up; on Windows and macOS the one that there is."""


def environment(system: str, cache: Path) -> dict[str, str]:
    """Of a process on that system, without a compiler. system: win32 (with a console of 256 characters), darwin, or ""
    for this one."""
    paths = [str(ROOT / "tests/portable/site"), str(ROOT / "src"), str(ROOT)]
    changes = {"PYTHONPATH": os.pathsep.join(paths), "HASTEN_TEST_SYSTEM": system, "HASTEN_CACHE": str(cache)}
    changes |= {"PYTHONWARNDEFAULTENCODING": "1", "OMP_NUM_THREADS": "1", "CXX": "none"}
    return {**os.environ, **changes, **({"PYTHONIOENCODING": "cp1252"} if system == "win32" else {})}


def told(system: str, folder: Path) -> tuple[dict[str, Any], str]:
    """What `core.py` tells at its end, and all that it prints."""
    command = [sys.executable, str(Path(__file__).with_name("core.py")), str(folder)]
    process = subprocess.run(
        command, env=environment(system, folder / "cache"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=600, check=False, encoding="cp1252" if system == "win32" else "utf-8",
    )  # fmt: skip
    assert process.returncode == 0, process.stdout
    return json.loads(process.stdout.splitlines()[-1]), process.stdout


@cache
def on_windows(folder: Path) -> tuple[dict[str, Any], str]:
    return told(OTHER, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("windows")


def test_the_core_runs(folder: Path) -> None:
    result, printed = on_windows(folder)
    assert result["masks"] == 4
    assert len(result["losses"]) == 9
    assert result["hidden"] == (["fcntl", "resource"] if sys.platform != "darwin" else ["msvcrt"])
    assert "Traceback" not in printed
    leftovers = [path for path in folder.rglob("*") if path.name.endswith((".lock", ".partial", ".tmp"))]
    assert leftovers == []


@pytest.mark.slow
@pytest.mark.skipif(not OTHER, reason="other systems are made up on Linux")
def test_every_system_trains_alike(folder: Path, tmp_path: Path) -> None:
    losses = {"win32": on_windows(folder)[0]["losses"]}
    for system in ("", "darwin"):
        place = tmp_path / (system or "here")
        place.mkdir()
        losses[system] = told(system, place)[0]["losses"]
    assert losses[""] == losses["darwin"] == losses["win32"]


@pytest.mark.slow
def test_two_processes_start_by_spawn(tmp_path: Path) -> None:
    from tests.portable.core import SETTINGS

    env = environment(OTHER, tmp_path / "cache")
    data, out = str(tmp_path / "data"), str(tmp_path / "run")
    phantom = ["phantom", "--out", data, "--cases", "4", "--shape", "24", "24", "24"]
    launch = ["launch", "--nproc", "2", data, "--out", out, "--quiet", *SETTINGS.split()]
    for command in (phantom, launch):
        subprocess.run([sys.executable, "-m", "hasten", *command], env=env, check=True, timeout=300)
    steps = [line["step"] for line in read_jsonl(Path(out, "metrics.jsonl")) if line["kind"] == "train"]
    assert steps == list(range(1, 7))
