from __future__ import annotations

from pathlib import Path

import pytest

from hasten.cases.sources import load_case_set
from hasten.cases.types import CaseSet
from hasten.config.schema import CacheConfig
from hasten.phantoms.organs import write_phantoms
from tests.cache.sets import write_case_set


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> CaseSet:
    folder = tmp_path_factory.mktemp("phantoms")
    return load_case_set(write_phantoms(folder, num_cases=4, shape=(24, 40, 40)))


@pytest.fixture
def small(tmp_path: Path) -> CaseSet:
    return write_case_set(tmp_path / "set", [(2, 3, 4), (5, 1, 2), (3, 3, 3), (4, 2, 5)], num_channels=2)


@pytest.fixture
def cache(tmp_path: Path) -> CacheConfig:
    return CacheConfig(dir=str(tmp_path / "cache"), home="ram", max_points=10)
