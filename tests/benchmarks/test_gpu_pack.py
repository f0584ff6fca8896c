from __future__ import annotations

import importlib.metadata
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpus import pack


def test_wheels_are_those_installed_here_and_never_torch() -> None:
    result = pack.wanted(["monai", "Pytorch_Ignite", "monai"])
    assert result == [f"{name}=={importlib.metadata.version(name)}" for name in ("monai", "pytorch-ignite")]
    for name in ("torch", "triton", "nvidia-cudnn-cu13"):
        with pytest.raises(ValueError, match="own build"):
            pack.wanted([name])
    with pytest.raises(ValueError, match="not installed here"):
        pack.wanted(["no-such-package-here"])


def test_everything_needed_is_installed_and_known() -> None:
    assert len(pack.wanted(pack.NEEDED)) == len(pack.NEEDED)


def test_pip_is_asked_for_wheels_without_their_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        (tmp_path / "monai-9-py3-none-any.whl").write_bytes(bytes(2**20))
        return subprocess.CompletedProcess(command, 0, "", "")

    (tmp_path / "monai-1-py3-none-any.whl").write_bytes(b"old")
    monkeypatch.setattr(pack.subprocess, "run", download)
    pack.main(["--to", str(tmp_path), "--python", "3.13"])
    (command,) = asked
    assert {"--no-deps", "--only-binary=:all:", "manylinux_2_28_x86_64"} <= set(command)
    assert command[command.index("--python-version") + 1] == "3.13"
    assert not any(part.startswith("torch==") for part in command)
    assert "1.0 MiB" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["monai-9-py3-none-any.whl"]


def test_a_wheel_that_is_not_to_be_had_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found for isal")
    monkeypatch.setattr(pack.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(ValueError, match="No matching distribution"):
        pack.fetch(["isal==0"], tmp_path, "3.12")
