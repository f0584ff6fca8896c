"""Whether a tracker's package is there, without importing it."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

_NEEDS = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy"),
    "wandb": ("wandb",),
    "jsonl": (),
}
"""Packages by tracker. `mlflow-skinny` brings mlflow without what its database takes."""


def check_trackers(names: Sequence[str]) -> list[str]:
    """A sentence for each of `names` that is no tracker, or whose package is missing, with what to do."""
    mistakes = []
    for name in names:
        if name not in _NEEDS:
            mistakes.append(f"observe.trackers: there is no tracker {name!r}; choose from {', '.join(_NEEDS)}")
        elif not all(_is_installed(package) for package in _NEEDS[name]):
            mistakes.append(f"observe.trackers: {name} is not installed; {remedy(name)}, or leave it out")
    return mistakes


def remedy(name: str) -> str:
    """The command that installs a tracker."""
    return f"pip install {name}" if name == "tensorboard" else f"pip install 'hasten[{name}]'"


def _is_installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    # W&B leaves a folder `wandb` where it ran, which Python takes for a package without an origin.
    return spec is not None and spec.origin is not None
