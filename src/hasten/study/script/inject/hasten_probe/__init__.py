"""Watches a training script from inside its own interpreter. Standard library and torch only, Python 3.9 or newer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def start() -> None:
    """Wait until the script imports torch. Only imports the standard library itself."""
    from .hook import after_import

    after_import("torch", _install)


def _install() -> None:
    """Patch the torch that was just imported, for this process and its forks."""
    from . import on_data, on_modes, on_modules, on_steps, on_tensors
    from .session import Session

    session = Session(json.loads(os.environ["HASTEN_DOCTOR"]))
    Path(session.out, f"torch-{os.getpid()}").touch()
    for part in (on_data, on_tensors, on_modules, on_modes, on_steps):
        part.install(session)
    os.register_at_fork(after_in_child=session.begin_forked)
    session.cures = _applied(os.environ.get("HASTEN_DOCTOR_CURES", ""))


def _applied(names: str) -> dict[str, Any]:
    """The description of each applied cure, or its error as text."""
    if not names:
        return {}
    from . import cures

    results = {}
    for name in names.split(","):
        try:
            results[name] = cures.apply(name)
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    return results
