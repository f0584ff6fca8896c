"""Watches a training script from inside its own interpreter. Standard library and torch only, Python 3.9 or newer."""

from __future__ import annotations

import json
import os
from pathlib import Path


def start() -> None:
    """Wait until the script imports torch. Only imports the standard library itself."""
    from .hook import after_import

    after_import("torch", _install)


def _install() -> None:
    """Patch the torch that was just imported, for this process and its forks."""
    from . import cures, on_data, on_modes, on_modules, on_steps, on_tensors
    from .session import Session

    session = Session(json.loads(os.environ["HASTEN_DOCTOR"]))
    Path(session.out, f"torch-{os.getpid()}").touch()
    for part in (on_data, on_tensors, on_modules, on_modes, on_steps):
        part.install(session)
    os.register_at_fork(after_in_child=session.begin_forked)
    for switch in session.wanted["switches"]:
        cures.apply(switch)
