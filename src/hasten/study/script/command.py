"""The user's command: whether it can be run and watched."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_PYTHON = re.compile(r"(python|pypy)[0-9.]*(\.exe)?$")
_TAKES_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_BLIND = "IES"
"""Switches of Python that make it ignore PYTHONPATH, or leave sitecustomize out."""


def checked(command: Sequence[str]) -> list[str]:
    """`command` as it can be run: `train.py args` becomes `python train.py args`.

    Raises ValueError for an empty command, a program or script that isn't there, and switches of Python that would
    keep the probe out. `python -m module`, torchrun and shell scripts are taken as they are.
    """
    if not command:
        raise ValueError("no command was given; put it after two dashes: hasten doctor -- python train.py")
    program, *rest = command
    if program.endswith(".py") and not os.access(program, os.X_OK):
        _script(program)
        return [sys.executable, program, *rest]
    path = shutil.which(program)
    if path is None and _PYTHON.fullmatch(program):
        path = sys.executable
    if path is None:
        problem = "is not a program" if Path(program).exists() else "does not exist"
        raise ValueError(f"{program}: {problem}; give the command as you'd type it, such as python train.py")
    if _PYTHON.search(Path(path).name):
        _python(program, rest)
    return [path if shutil.which(program) is None else program, *rest]


def _python(program: str, rest: list[str]) -> None:
    at = 0
    while at < len(rest):
        word = rest[at]
        if word in ("-m", "-c") or not word.startswith("-"):
            break
        if word in _TAKES_VALUE:
            at += 1
        elif not word.startswith(("--", "-X", "-W")):
            blind = [letter for letter in word[1:] if letter in _BLIND]
            if blind:
                raise ValueError(f"{program} -{blind[0]}: keeps the probe out of the script; leave this switch out")
            if word.endswith(("m", "c")):
                break
        at += 1
    if at >= len(rest):
        raise ValueError(f"{program}: no script was given; such as hasten doctor -- {program} train.py")
    if not rest[at].startswith("-"):
        _script(rest[at])


def _script(name: str) -> None:
    path = Path(name)
    if not path.exists():
        raise ValueError(f"{name}: does not exist; check the path (seen from {Path.cwd()})")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise ValueError(f"{name}: is a folder; give the script inside it")
