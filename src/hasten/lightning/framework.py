"""Lightning's classes, from whichever of its two packages the script uses."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
"""The same code under two names, whose classes don't know each other."""


def lightning_package() -> ModuleType:
    """The one that the script has imported; else the first that is installed.

    Raises ImportError naming the extra where there is none.
    """
    for name in _PACKAGES:
        imported = sys.modules.get(name)
        if imported is not None:
            return imported
    for name in _PACKAGES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
    raise ImportError("hasten.lightning needs Lightning: pip install 'hasten[lightning]' (or pytorch-lightning)")
