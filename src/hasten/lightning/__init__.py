"""Hasten for those who train with Lightning: its batches as a data module, its monitor and report as a callback.

Needs Lightning (`pip install 'hasten[lightning]'`), as `lightning` or as `pytorch_lightning`.
"""

from importlib import import_module
from typing import Any

_HOME = {"HastenCallback": "hasten.lightning.callback", "HastenDataModule": "hasten.lightning.data"}

__all__ = ["HastenCallback", "HastenDataModule"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'hasten.lightning' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
