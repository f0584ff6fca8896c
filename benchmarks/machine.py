"""The hardware and the package versions that are recorded with a benchmark's result."""

from __future__ import annotations

import platform
import sys
from typing import Any

import psutil

from hasten.observe.cores import usable_cores
from hasten.observe.env import cpu_model, installed_version

PACKAGES = (
    "hasten", "torch", "monai", "numpy", "nibabel", "torchio", "pytorch-ignite", "isal", "batchgeneratorsv2",
    "torchvision", "lightning", "nnunetv2",
)  # fmt: skip


def hardware() -> dict[str, Any]:
    """The minimal hardware facts for a benchmark's result; starts no program and imports nothing."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "ram_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "card": _card(),
    }


def _card() -> str | None:
    torch = sys.modules.get("torch")  # a program that never touched torch did not use the card either
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else None


def versions() -> dict[str, str]:
    """Versions of Python and of the installed `PACKAGES`."""
    installed = {name: installed_version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **{name: text for name, text in installed.items() if text is not None}}
