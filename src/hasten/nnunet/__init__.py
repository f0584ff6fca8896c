"""Hasten inside nnU-Net: a trainer for its commands, for the release of it that `check_version` names."""

from __future__ import annotations

from importlib import metadata

_SUPPORTED = "2.8"


def check_version() -> None:
    """Raises ValueError where another release of nnU-Net is installed; none at all passes."""
    try:
        version = metadata.version("nnunetv2")
    except metadata.PackageNotFoundError:
        return
    if version.split(".")[:2] != _SUPPORTED.split("."):
        raise ValueError(
            f"nnunetv2 {version} is installed; Hasten's trainer is written for {_SUPPORTED}: pip install "
            "'hasten[nnunet]'"
        )
