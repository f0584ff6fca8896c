from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.boxes import write_boxes

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # `benchmarks` is a folder of the repository, not an installed package


@pytest.fixture(scope="session")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_boxes(tmp_path_factory.mktemp("mr") / "set", count=4, shape=(30, 34, 28), air=False)


@pytest.fixture(scope="session")
def ct_boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_boxes(tmp_path_factory.mktemp("ct") / "set", count=4, shape=(40, 36, 32))
