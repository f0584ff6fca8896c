"""Ranks that several tests share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distribute.ranks import run_ranks


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks found in the checks of tests/distribute/pair.py."""
    return run_ranks("tests.distribute.pair", 2, tmp_path_factory.mktemp("pair"), timeout_s=600)
