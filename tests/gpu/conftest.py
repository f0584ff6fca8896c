"""Every test of this folder is marked `gpu`, and skipped without a CUDA device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs before those that `-m` leaves out are taken away."""
    marks = (pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for mark in marks:
                item.add_marker(mark)
