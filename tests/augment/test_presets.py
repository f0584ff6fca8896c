"""The preset chains run, keep classes, and are MONAI's tutorials'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    Compose,
    NormalizeIntensityd,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandScaleIntensityd,
    RandShiftIntensityd,
    RandSpatialCropd,
)

from hasten.augment.from_monai import compile_transforms
from hasten.augment.presets import brats_chain, nnunet_chain, pathology_chain, spleen_chain
from hasten.augment.store import store_of_items
from hasten.cache.arena import Store
from tests.augment.stores import bind_store

PATCH = (16, 16, 16)


def store(channels: int, dims: int = 3) -> Store:
    rng = np.random.default_rng(0)
    shape = (20, 24, 22)[3 - dims :]
    items: list[tuple[str, dict[str, Any]]] = []
    for number in range(4):
        label = (rng.random((1, *shape)) < 0.2).astype(np.uint8) * (number % 2 + 1)
        items.append((f"item {number}", {"image": rng.random((channels, *shape)).astype(np.float16), "label": label}))
    return store_of_items(items, ["image", "label"])


@pytest.mark.parametrize("channels", [1, 3])
def test_nnunet(channels: int) -> None:
    program = bind_store(nnunet_chain(PATCH, num_channels=channels), store(channels), batch_size=6)
    for batch in program.batches(0, 4):
        assert batch["image"].shape == (6, channels, *PATCH)
        assert torch.isfinite(batch["image"]).all()
        assert set(batch["label"].unique().tolist()) <= {0, 1, 2}


def test_nnunet_in_two_dimensions() -> None:
    chain = nnunet_chain((1, 16, 16), spatial_dims=2, rotate_deg=180.0)
    batch = bind_store(chain, store(1, 2), batch_size=6)(0)
    assert batch["image"].shape == (6, 1, 16, 16)


def test_spleen_is_what_its_transforms_are_lowered_to() -> None:
    keys = ["image", "label"]
    crop = RandCropByPosNegLabeld(keys, "label", PATCH, 1, 1, num_samples=4, image_key="image", image_threshold=0)
    lowered = compile_transforms(Compose([crop])).chain
    preset = spleen_chain(PATCH)
    assert lowered.crop.num_samples == preset.crop.num_samples == 4  # type: ignore[union-attr]
    data = store(1)
    one, other = (bind_store(each, data, batch_size=8)(2) for each in (lowered, preset))
    assert torch.equal(one["image"], other["image"])


def test_brats_is_what_its_transforms_are_lowered_to() -> None:
    keys = ["image", "label"]
    transforms = [
        RandSpatialCropd(keys, roi_size=PATCH, random_size=False),
        *(RandFlipd(keys, prob=0.5, spatial_axis=axis) for axis in range(3)),
        NormalizeIntensityd("image", nonzero=True, channel_wise=True),
        RandScaleIntensityd("image", factors=0.1, prob=1.0),
        RandShiftIntensityd("image", offsets=0.1, prob=1.0),
    ]
    data = store(4)
    one, other = (
        bind_store(each, data, batch_size=8)(1)
        for each in (compile_transforms(Compose(transforms)).chain, brats_chain(PATCH))
    )
    assert torch.equal(one["image"], other["image"])
    assert torch.equal(one["label"], other["label"])


@pytest.mark.parametrize("value_range", [1.0, 255.0])
def test_pathology(value_range: float) -> None:
    rng = np.random.default_rng(0)
    tiles = [
        (f"tile {number}", {"image": (rng.random((3, 32, 32)) * value_range).astype(np.float32)}) for number in range(5)
    ]
    program = bind_store(pathology_chain(value_range=value_range), store_of_items(tiles, ["image"]), batch_size=8)
    batch = program(0)
    assert batch["image"].shape == (8, 3, 32, 32)
    assert 0 <= float(batch["image"].min()) <= float(batch["image"].max()) <= value_range
