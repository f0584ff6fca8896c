"""Runs that several files predict with. Nothing may be written into their folders: copy one to change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.training.phantom_runs import IN_3D, pictures, source, trained


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """For networks this small more threads only wait, and sums in another order end in other bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    return trained(folder, source(folder / "data"), *IN_3D, "train.steps=60")


@pytest.fixture(scope="session")
def run_of_two_channels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    return trained(folder, source(folder / "data", 2), *IN_3D, "train.steps=30")


@pytest.fixture(scope="session")
def run_of_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flat")
    more = ("sample.patch=[1, 16, 16]", "network.strides=[[1, 2, 2]]", "train.steps=250", "sample.batch_size=4")
    return trained(folder, pictures(folder / "data"), *more)
