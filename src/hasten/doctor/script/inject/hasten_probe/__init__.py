"""Watches a training script from inside its interpreter: Python 3.9 and its library, and torch 2.1, or newer."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def start() -> None:
    """Wait until the script imports torch. Only imports the standard library itself."""
    after_import("torch", _install)


def _install() -> None:
    """Patch the torch that was just imported, for this process and its forks; leave one alone that is too old."""
    torch = sys.modules["torch"]
    if not hasattr(torch, "compiler"):
        raise RuntimeError(f"it is {torch.__version__}; 2.1 is the oldest that can be watched")
    from . import on_data, on_modes, on_modules, on_rounds, on_steps, on_tensors
    from .session import Session

    session = Session(json.loads(os.environ["HASTEN_DOCTOR"]))
    try:
        for part in (on_data, on_tensors, on_modules, on_modes, on_rounds, on_steps):
            part.install(session)
    except Exception:
        session.on = False  # what is patched already does no more than call the original
        raise
    Path(session.out, f"torch-{os.getpid()}").touch()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=session.begin_forked)


class _Finder:
    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._name = name
        self._call = call
        self._searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching = False
        loader = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            # Restore the loader.
            vars(loader).pop("exec_module", None)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            try:
                self._call()
            except Exception as error:
                print(f"hasten doctor: cannot watch {name} ({type(error).__name__}: {error})", file=sys.stderr)

        vars(loader)["exec_module"] = exec_module
        return spec


def after_import(name: str, call: Callable[[], object]) -> None:
    """Call `call()` once `name` is imported; print what it raises to stderr instead of propagating it."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _Finder(name, call))
