"""Stand-ins for SLURM's commands: scripts on PATH that note how they were called and say what a test wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def fake(folder: Path, name: str, body: str) -> Path:
    """A command `name` in `folder` that runs the shell lines `body`; its arguments go to NAME.calls, a line a call."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/bash\nprintf "%s\\n" "$*" >> {folder}/{name}.calls\n{body}\n')
    path.chmod(0o755)
    return path


def calls(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []


def only_fakes(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """PATH with the fakes and the shell's own commands, without a SLURM that may be installed."""
    folder.mkdir(exist_ok=True)
    shell = folder / "shell"
    shell.mkdir(exist_ok=True)
    for name in ("bash", "sed", "head", "grep", "date", "cat", "echo"):
        result = next((place for place in ("/bin", "/usr/bin") if Path(place, name).exists()), None)
        if result is not None and not (shell / name).exists():
            (shell / name).symlink_to(Path(result, name))
    patch.setenv("PATH", os.pathsep.join((str(folder), str(shell))))
