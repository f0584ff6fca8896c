"""Three small slides, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.phantoms.slides import write_phantom_slides

SIZE = (640, 512)


@pytest.fixture(scope="session")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """slides/, masks/ and slides.csv; levels 1, 1/2, 1/4, compressed without loss."""
    out = tmp_path_factory.mktemp("phantoms")
    return write_phantom_slides(out, num_cases=3, shape=(1, *SIZE), num_levels=3, compression="deflate", seed=3)
