from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hasten.pathology.compose import predict_slides
from hasten.pathology.config import ColourConfig, load
from hasten.pathology.run import train_detection
from hasten.pathology.tiles import TileSet, make_batches
from hasten.phantoms.slides import write_phantom_slides
from tests.pathology.conftest import SETTINGS


def test_tiles_on_the_host_and_on_the_gpu_make_the_same_batches() -> None:
    image = torch.randint(0, 256, (40, 3, 64, 64), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    tiles = TileSet(image=image, label=(torch.arange(40) % 3 == 0).to(torch.uint8), home="ram")
    make = {"batch_size": 8, "seed": 5, "device": torch.device("cuda")}
    resident, gathered = (make_batches(tiles, ColourConfig(), **make, resident=each) for each in (True, False))
    for one, other in zip(resident.batches(0, 9), gathered.batches(0, 9), strict=True):
        assert one["image"].is_cuda
        # Numbers are drawn on the host for the second, whose logarithms and cosines round otherwise.
        torch.testing.assert_close(one["image"], other["image"], rtol=1e-4, atol=1e-4)
        assert torch.equal(one["label"], other["label"])


def test_a_run_on_the_gpu_predicts_on_the_cpu_too(tmp_path: Path) -> None:
    pytest.importorskip("imagecodecs")
    phantoms = write_phantom_slides(tmp_path / "slides", num_cases=5, shape=(1, 512, 512), num_levels=3, seed=1)
    config = load(None, [f"data.source={phantoms}", *SETTINGS, "train.device=cuda"])
    train_detection(config, tmp_path / "run")
    slide = phantoms / "slides" / "phantom_002.tif"
    predict_slides(tmp_path / "run", [slide], tmp_path / "cpu", device="cpu")
    ours, theirs = (
        np.load(folder / "phantom_002.npy") for folder in (tmp_path / "cpu", tmp_path / "run" / "heat_maps")
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
