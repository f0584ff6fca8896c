"""Found first by the script's interpreter, as this folder leads its PYTHONPATH: the probe, then the user's own."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys


def _run_users_own() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    paths = [path for path in sys.path if os.path.abspath(path or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("HASTEN_DOCTOR"):
    try:
        importlib.import_module("hasten_probe").start()
    except Exception as error:
        print(f"hasten doctor: the probe does not start ({type(error).__name__}: {error})", file=sys.stderr)
_run_users_own()
