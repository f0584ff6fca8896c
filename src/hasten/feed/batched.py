"""A batched feed from a cached data set: Hasten's crops and augmentation in place of a loader and random transforms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hasten.augment.make_program import cases_of_arena, make_program
from hasten.augment.presets import default_chain
from hasten.cache.dataset import ChainDataset
from hasten.cache.gathered import gather
from hasten.config.schema import SampleConfig
from hasten.feed.feed import Feed


def batched_feed(
    dataset: ChainDataset,
    sample: SampleConfig,
    *,
    num_classes: int,
    first: int = 0,
    last: int,
    seed: int = 0,
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0),
    device: torch.device | str = "cpu",
    image_key: str = "image",
    label_key: str = "label",
    compile: bool = False,
) -> Feed:
    """Augmented batches of steps `first` ... `last` - 1 on `device`, each a dict of image (B, C, *S) float32 and
    label (B, 1, *S) uint8.

    The items are the outputs of the deterministic part of the data set's transform, concatenated in the memory of the
    device. Of a `SmartCacheDataset` that is the window as it is now: ask for a new feed after each
    `update_cache`. sample: with patch and batch_size; D, H, W are the axes of the items in their order. spacing: voxel
    size along them, which rotations are made in. Raises ValueError naming the item that does not fit.
    """
    if sample.patch is None or sample.batch_size is None:
        raise ValueError("sample: patch and batch_size must be given; there is no plan to take them from")
    items = list(_items(dataset, image_key, label_key))
    dims = torch.as_tensor(items[0][1]).ndim - 1 if items else 3
    arena = gather(items, spatial_dims=dims, num_classes=num_classes).to(device, home="device")
    chain = default_chain(sample, patch=sample.patch, spatial_dims=dims, spacing=spacing)
    program = make_program(
        chain, cases_of_arena(arena, dims), batch_size=sample.batch_size, seed=seed, device=device, compile=compile
    )
    return Feed(program, first=first, last=last)


def _items(dataset: ChainDataset, image_key: str, label_key: str) -> Iterator[tuple[str, Any, Any]]:
    for number in range(len(dataset)):
        item = dataset.prepared(number)
        for key in (image_key, label_key):
            if not isinstance(item, dict) or key not in item:
                raise ValueError(f'item {number}: has no "{key}"; name the keys by image_key and label_key')
        yield f"item {dataset.source(number)}", item[image_key], item[label_key]
