"""Small stores of prepared cases, and programs of the default augmentation, for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.augment.chain import Batch, Chain
from hasten.augment.draw import Draws
from hasten.augment.host import render_on_host
from hasten.augment.make_program import CaseSource, make_segment
from hasten.augment.presets import default_chain
from hasten.augment.program import Segment
from hasten.augment.render import render
from hasten.cache.arena import Arena, PointSets, Store
from hasten.config.schema import SampleConfig
from hasten.prepare.foreground import foreground_points

Shape = tuple[int, int, int]
OFF: dict[str, Any] = {
    "foreground_prob": 0.0,
    "affine_prob": 0.0,
    "brightness_prob": 0.0,
    "contrast_prob": 0.0,
    "gamma_prob": 0.0,
    "noise_prob": 0.0,
}
"""No operation but the crop, anywhere."""


def store_of(images: Sequence[np.ndarray], labels: Sequence[np.ndarray], num_classes: int) -> Store:
    """Images are (C, D, H, W), labels (D, H, W); the layout is that of the cache."""
    points = [foreground_points(label, num_classes, 50, seed=number)[0] for number, label in enumerate(labels)]
    counts = torch.tensor([[array.size for array in each] for each in points])
    sizes = torch.tensor([label.size for label in labels])
    return Store(
        values={
            "image": torch.from_numpy(np.concatenate([image.reshape(-1) for image in images])),
            "label": torch.from_numpy(np.concatenate([label.reshape(-1) for label in labels])),
        },
        channels={"image": len(images[0]), "label": 1},
        offset=sizes.cumsum(0) - sizes,
        shape=torch.tensor([label.shape for label in labels]),
        spatial_dims=2 if all(label.shape[0] == 1 for label in labels) else 3,
        ids=tuple(f"case {number}" for number in range(len(labels))),
        sets=PointSets(
            torch.from_numpy(np.concatenate([array for each in points for array in each])),
            (counts.reshape(-1).cumsum(0) - counts.reshape(-1)).view_as(counts),
            counts,
        ),
    )


def random_store(
    shapes: Sequence[Shape], *, num_channels: int = 1, num_classes: int = 3, dtype: str = "float32", seed: int = 0
) -> Store:
    """Voxels from U(0, 1) and evenly drawn classes; every third case is background only."""
    generator = np.random.default_rng(seed)
    images = [generator.random((num_channels, *shape)).astype(dtype) for shape in shapes]
    labels = [
        (generator.integers(0, num_classes, shape) * (number % 3 != 2)).astype(np.uint8)
        for number, shape in enumerate(shapes)
    ]
    return store_of(images, labels, num_classes)


def arena_of(store: Store) -> Arena:
    """An arena of a store in memory."""
    shapes = tuple((depth, height, width) for depth, height, width in store.shape.tolist())
    offsets = tuple(store.offset.tolist())
    return Arena(store=store, shapes=shapes, offsets=offsets, geometry=(), num_classes=3, home="ram")


def segment_of(
    store: Store,
    patch: Shape,
    *,
    batch_size: int = 4,
    seed: int = 0,
    train_cases: Any = None,
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0),
    binding: dict[str, Any] | None = None,
    **options: Any,
) -> Segment:
    """The default augmentation; everything that `options` does not turn on is off. binding: more of `make_segment`."""
    config = SampleConfig(patch=patch, batch_size=batch_size, **{**OFF, **options})
    dims = store.spatial_dims if patch[0] == 1 else 3
    chain = default_chain(config, patch=patch, spatial_dims=dims, spacing=spacing)
    return make_segment(
        chain, CaseSource(store=store), batch_size=batch_size, seed=seed, train_cases=train_cases, **(binding or {})
    )


def _by_host(segment: Segment, draws: Draws) -> Batch:
    return render_on_host(segment.stages, segment.stored(), draws, segment.store.spatial_dims)


def _by_device(segment: Segment, draws: Draws) -> Batch:
    return render(segment.stages, segment.stored(), draws, segment.store.spatial_dims)


RENDERERS: dict[str, Callable[[Segment, Draws], Batch]] = {"host": _by_host, "device": _by_device}
"""Both ways from drawn numbers to voxels; the one for a device runs on a CPU as well."""


def batch_by(renderer: str, segment: Segment, number: int) -> Batch:
    """A batch of a segment by one of RENDERERS."""
    return RENDERERS[renderer](segment, next(iter(segment.draws(number, number + 1))))


def case_values(store: Store, key: str, case: int) -> Tensor:
    """(C, D, H, W) as stored."""
    size, channels = math.prod(store.shape[case].tolist()), store.channels[key]
    start = int(store.offset[case]) * channels
    return store.values[key][start : start + size * channels].view(channels, *store.shape[case].tolist())


def slice_of(volume: Tensor, start: Sequence[int], patch: Shape) -> Tensor:
    """The plain slice of (C, D, H, W) that begins at `start`, with zeros where it leaves the volume."""
    piece = volume.new_zeros((len(volume), *patch))
    inside, outside = [slice(None)], [slice(None)]
    for first, edge, length in zip(start, patch, volume.shape[1:], strict=True):
        low, high = max(first, 0), min(first + edge, length)
        inside.append(slice(low, high))
        outside.append(slice(low - first, high - first))
    piece[tuple(outside)] = volume[tuple(inside)]
    return piece


def bind_store(chain: Chain, store: Store, **options: Any) -> Segment:
    """options: of `make_segment`."""
    return make_segment(chain, CaseSource(store=store), **options)
