"""Installs all patches right after torch was imported."""

from __future__ import annotations

import json
import os
from pathlib import Path

from .session import Session


def install() -> None:
    """Patch torch for this process and those forked from it."""
    from . import on_backward, on_data, on_modes, on_modules, on_steps, on_tensors

    session = Session(json.loads(os.environ["HASTEN_DOCTOR"]))
    Path(session.out, f"torch-{os.getpid()}").touch()
    for part in (on_data, on_tensors, on_modules, on_backward, on_modes, on_steps):
        part.install(session)
    os.register_at_fork(after_in_child=session.begin_forked)
    _apply_cures(session)


def _apply_cures(session: Session) -> None:
    names = os.environ.get("HASTEN_DOCTOR_CURES", "")
    if not names:
        return
    from . import cures

    for name in names.split(","):
        try:
            session.cures[name] = cures.apply(name)
        except Exception as error:
            session.cures[name] = f"{type(error).__name__}: {error}"
