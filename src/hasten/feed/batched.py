"""A batched feed from a cached data set: Hasten's crops and augmentation in place of a loader and random transforms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hasten.augment.make_program import cases_of_arena, make_program
from hasten.augment.presets import default_chain
from hasten.cache.arena_in_memory import arena_from_items
from hasten.cache.dataset import ChainDataset
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
    """Augmented batches on a device from a data set whose items are the output of its transform's deterministic part.

    The items are concatenated in the memory of the device. Of a `SmartCacheDataset` that is the window as it is now:
    ask for a new feed after each `update_cache`.

    Args:
        dataset: Hasten's `CacheDataset`, `PersistentDataset`, `LMDBDataset` or `SmartCacheDataset`.
        sample: with patch and batch_size; D, H, W are the axes of the items in their order.
        num_classes: of the labels, the background included.
        first, last: steps `first` ... `last` - 1.
        seed: of what is drawn.
        spacing: voxel size along D, H, W in mm, which rotations are made in.
        device: of the batches.
        image_key, label_key: keys of an item.
        compile: compile the program that makes batches.

    Returns:
        A `Feed` of dicts with image (B, C, *S) float32 and label (B, 1, *S) uint8.

    Raises:
        ValueError: naming the item that does not fit.

    Example:
        >>> from hasten.config.schema import PrepareConfig, SampleConfig
        >>> prepare = PrepareConfig(spacing=(1.0, 1.0, 1.0), intensity="zscore", crop_foreground=False)
        >>> files = {"image": "case.nii.gz", "label": "label.nii.gz"}
        >>> cases = hasten.CacheDataset([files], hasten.Prepare(prepare, labels={0: "background", 1: "spleen"}))
        >>> sample = SampleConfig(patch=(16, 16, 16), batch_size=2)
        >>> for batch in hasten.batched_feed(cases, sample, num_classes=2, last=3):
        ...     images, labels = batch["image"], batch["label"]
    """
    if sample.patch is None or sample.batch_size is None:
        raise ValueError("sample: patch and batch_size must be given; there is no plan to take them from")
    items = list(_items(dataset, image_key, label_key))
    dims = torch.as_tensor(items[0][1]).ndim - 1 if items else 3
    arena = arena_from_items(items, spatial_dims=dims, num_classes=num_classes).to(device, home="device")
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
