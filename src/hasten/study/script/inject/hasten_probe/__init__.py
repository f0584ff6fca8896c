"""Watches a training script from inside its own interpreter. Standard library and torch only, Python 3.9 or newer."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def start() -> None:
    """Wait for the script to import torch; by itself this imports nothing but the standard library."""
    from .hook import after_import

    after_import("torch", _install)


def _install() -> None:
    """Patch torch, which was just imported, for this process and those forked from it."""
    from . import on_data, on_modes, on_modules, on_steps, on_tensors
    from .session import Session

    session = Session(json.loads(os.environ["HASTEN_DOCTOR"]))
    Path(session.out, f"torch-{os.getpid()}").touch()
    for part in (on_data, on_tensors, on_modules, on_modes, on_steps):
        part.install(session)
    os.register_at_fork(after_in_child=session.begin_forked)
    session.cures = _applied(os.environ.get("HASTEN_DOCTOR_CURES", ""))


def _applied(names: str) -> dict[str, Any]:
    """What applying each cure gave, or its error's words."""
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
