from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.cache.dataset import CacheDataset
from hasten.config.schema import SampleConfig
from hasten.feed.batched import batched_feed
from hasten.monai.persistent import PersistentDataset
from hasten.monai.smart import SmartCacheDataset
from tests.cache.items import chain, write_items

CROPS = SampleConfig(
    patch=(4, 4, 4),
    batch_size=3,
    flip_prob=(0.0, 0.0, 0.0),
    affine_prob=0.0,
    brightness_prob=0.0,
    contrast_prob=0.0,
    gamma_prob=0.0,
    noise_prob=0.0,
)


class Item:
    deterministic = True

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"image": row["image"], "label": row["label"]}


def rows(count: int, shape: tuple[int, ...] = (6, 7, 8)) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {"image": np.full((1, *shape), number, np.float32), "label": rng.integers(0, 3, (1, *shape)).astype(np.uint8)}
        for number in range(count)
    ]


def test_crops_come_from_the_items(tmp_path: Path) -> None:
    for dataset in (
        CacheDataset(write_items(tmp_path / "files", 3), chain(), progress=False),
        PersistentDataset(write_items(tmp_path / "files", 3), chain(), tmp_path / "cache"),
    ):
        batches = list(batched_feed(dataset, CROPS, num_classes=2, last=4))
        assert len(batches) == 4
        items = [torch.as_tensor(dataset.prepared(number)["image"])[0] for number in range(3)]
        for image, label in map(dict.values, batches):
            assert image.shape == label.shape == (3, 1, 4, 4, 4)
            for sample in image:
                assert any(
                    torch.equal(sample[0], item[d : d + 4, h : h + 4, w : w + 4])
                    for item in items
                    for d in range(3)
                    for h in range(3)
                    for w in range(3)
                )


def test_any_step_can_be_the_first() -> None:
    dataset = CacheDataset(rows(4), Item(), progress=False)
    whole = list(batched_feed(dataset, CROPS, num_classes=3, last=6, seed=1))
    tail = list(batched_feed(dataset, CROPS, num_classes=3, first=4, last=6, seed=1))
    assert all(torch.equal(one["image"], other["image"]) for one, other in zip(whole[4:], tail, strict=True))


def test_a_window_gives_its_own_items() -> None:
    with SmartCacheDataset(rows(5), Item(), 0.25, cache_num=4, shuffle=False, progress=False) as dataset:
        seen = []
        for _ in range(2):
            feed = batched_feed(dataset, CROPS, num_classes=3, last=8)
            seen.append({float(image.max()) for batch in feed for image in batch["image"]})
            dataset.update_cache()
    assert seen == [{0.0, 1.0, 2.0, 3.0}, {1.0, 2.0, 3.0, 4.0}]


def test_flat_items() -> None:
    dataset = CacheDataset(rows(2, (9, 8)), Item(), progress=False)
    flat = SampleConfig(patch=(1, 4, 4), batch_size=2)
    batch = next(iter(batched_feed(dataset, flat, num_classes=3, last=1)))
    assert batch["image"].shape == batch["label"].shape == (2, 1, 4, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": np.zeros((6, 7, 8), np.float32)}, r"item 1: its image has shape \(6, 7, 8\)"),
        ({"label": np.zeros((6, 7, 7), np.uint8)}, r"item 1: its label has shape"),
        ({"label": np.full((6, 7, 8), 3)}, r"item 1: its label holds values from 3 to 3"),
        ({"label": np.full((6, 7, 8), 0.5)}, r"item 1: its label holds values from 0\.5 to 0\.5"),
        ({"image": np.zeros((2, 6, 7, 8), np.float32)}, r"item 1: has 2 channels, the first item 1"),
    ],
)
def test_an_item_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    data = rows(2)
    data[1] |= change
    with pytest.raises(ValueError, match=message):
        batched_feed(CacheDataset(data, Item(), progress=False), CROPS, num_classes=3, last=1)
