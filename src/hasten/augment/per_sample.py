"""Transforms that are not lowered, run as MONAI runs them: on the host, one sample after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.chain import Batch, PerSample, Placed, Stage
from hasten.augment.cucim import OnGpu
from hasten.augment.lower import name_of, names_of
from hasten.augment.op import op_key
from hasten.observe.ranges import Range

_RANDOM = threading.RLock()
"""Lock: a transform has one random state, and torch and numpy one generator each, for all threads."""


def run_per_sample(stage: Stage, batch: Batch, key: Tensor) -> Batch:
    """Each sample through the transforms, their random states seeded by its key. key: (B, 2).

    Raises ValueError naming the transforms if the results have different shapes.
    """
    assert isinstance(stage, Placed)
    assert isinstance(stage.op, PerSample)
    seeds = op_key(key, stage.position)[:, 0].tolist()
    device = next(iter(batch.values())).device
    stays = all(isinstance(each, OnGpu) for each in stage.op.transforms)
    entries = {name: value if stays else value.cpu() for name, value in batch.items()}
    items = [
        run_one(stage.op.transforms, {name: value[row] for name, value in entries.items()}, seed)
        for row, seed in enumerate(seeds)
    ]
    return {name: value.to(device) for name, value in stacked(stage.op.transforms, items).items()}


def run_one(transforms: tuple[Any, ...], item: dict[str, Any], seed: int) -> Any:
    """Apply the transforms to an item; their random state is seeded with `seed`, a 32-bit word, and stays changed.

    torch's and numpy's generators, which other transforms draw from, are seeded too while a transform runs.
    """
    for number, each in enumerate(transforms):
        transform_seed = (seed + 0x9E3779B1 * number) % 2**32
        with _RANDOM, Range(name_of(each)), _seeded(transform_seed):
            if hasattr(each, "set_random_state"):
                each.set_random_state(state=np.random.RandomState(transform_seed))
            item = each(item)
    return item


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    before = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(before)  # noqa: NPY002


def stacked(transforms: tuple[Any, ...], items: list[Any]) -> Batch:
    """The items' tensors stacked; entries that are not numbers are left out."""
    names = names_of(transforms)
    if any(not isinstance(item, dict) for item in items):
        raise ValueError(
            f"{names}: gives {type(items[0]).__name__} instead of one dict a sample; crops with several samples can't "
            "stand after the first crop"
        )
    batch: Batch = {}
    for name, first in items[0].items():
        if not isinstance(first, torch.Tensor | np.ndarray):
            continue
        values = [torch.as_tensor(item[name]).as_subclass(Tensor) for item in items]
        if len({value.shape for value in values}) > 1:
            raise ValueError(
                f'{names}: changes the shape of "{name}" from sample to sample ({tuple(values[0].shape)} and others), '
                "so no batch can be made; crop or resize to one size after it"
            )
        batch[name] = torch.stack(values)
    return batch
