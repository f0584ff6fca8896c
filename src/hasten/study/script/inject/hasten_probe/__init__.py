"""Watches a training script from inside its own interpreter. Standard library and torch only, Python 3.9 or newer."""

from __future__ import annotations


def start() -> None:
    """Wait for the script to import torch; by itself this imports nothing but the standard library."""
    from .hook import after_import

    after_import("torch", _with_torch)


def _with_torch() -> None:
    from . import install

    install.install()
