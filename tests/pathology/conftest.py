"""Small slides with settings that go with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.pathology.config import DetectionConfig, load
from hasten.phantoms.slides import write_phantom_slides

SETTINGS = (
    "tiles.size=48", "tiles.stride=32", "tiles.tissue_downsample=4", "tiles.num_threads=2", "network.width=4",
    "train.batch_size=8", "train.steps=4", "train.validate_every=2", "train.precision=fp32",
    "train.channels_last=false", "train.device=cpu", "detect.stride=32", "detect.box=6", "detect.mask_downsample=4",
)  # fmt: skip


@pytest.fixture(scope="session")
def phantoms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five slides of 512 pixels, one of them for validation, one without a lesion."""
    return write_phantom_slides(
        tmp_path_factory.mktemp("slides"), num_cases=5, shape=(1, 512, 512), num_levels=3, seed=1
    )


@pytest.fixture
def config(phantoms: Path) -> DetectionConfig:
    return load(None, [f"data.source={phantoms}", *SETTINGS])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
