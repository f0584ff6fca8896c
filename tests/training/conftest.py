"""Phantoms, and a run on six of them, which several files share. Nothing may be written into the run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.config.schema import RunConfig
from hasten.phantoms.organs import write_phantoms
from hasten.training.run import train
from tests.prediction.conftest import _one_thread  # noqa: F401
from tests.training.runs import config_of


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("phantoms") / "set", num_cases=6, shape=(16, 24, 24))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("phantoms")
    write_phantoms(folder, num_cases=5, shape=(20, 30, 40), spacing=(2.0, 1.0, 1.0))
    return folder


@pytest.fixture(scope="session")
def make(phantoms: Path) -> Callable[..., RunConfig]:
    """A run of 14 steps, with overrides."""
    return lambda *overrides: config_of(phantoms, phantoms.parent / "cache", *overrides)


@pytest.fixture(scope="session")
def finished(make: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run as it should be, and the summary that `train` returned."""
    out = tmp_path_factory.mktemp("finished") / "run"
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as `_one_thread` does it for each module, later than this
    try:
        return out, train(make(), out)
    finally:
        torch.set_num_threads(before)
