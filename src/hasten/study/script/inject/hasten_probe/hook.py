"""Calls back right after other code has imported a module."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any


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
