"""Rendering as a compiler sees it: one graph, and the batch that it makes without one."""

from __future__ import annotations

import pytest
import torch

from hasten.augment.chain import Chain
from hasten.augment.crop import SpatialCrop
from hasten.augment.holes import CoarseDropout, CoarseShuffle
from hasten.augment.noise import GaussianNoise
from tests.augment.stores import RENDERERS, batch_by, bind_store, random_store


@pytest.mark.parametrize("renderer", RENDERERS)
@pytest.mark.parametrize("prob", [1, 0.5])
def test_labels_of_which_boxes_change_stay_classes(renderer: str, prob: float) -> None:
    crop, keys = SpatialCrop(size=(8, 8, 8)), ("image", "label")
    shuffle = CoarseShuffle(prob=prob, keys=keys, spatial_size=4)
    for fill, wanted in ((0.0, {0, 1, 2}), (-1.0, {0, 1, 2}), (300.0, {0, 1, 2, 255})):
        dropout = CoarseDropout(prob=prob, keys=keys, spatial_size=4, fill_value=fill)
        chain = Chain(crop=crop, ops=(dropout, shuffle), keys=keys, label_keys=("label",))
        own = bind_store(chain, random_store([(9, 12, 12)] * 2, dtype="uint8"), batch_size=6)
        batch = batch_by(renderer, own, 0)
        assert batch["image"].dtype == torch.float32
        assert batch["label"].dtype == torch.uint8
        assert set(batch["label"].unique().tolist()) == wanted
    noise = GaussianNoise(prob=1, keys=keys)
    noisy = Chain(crop=crop, ops=(shuffle, noise), keys=keys, label_keys=("label",))
    assert batch_by(renderer, bind_store(noisy, own.store, batch_size=6), 0)["label"].dtype == torch.float32
