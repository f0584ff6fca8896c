"""Small arenas and programs for the tests of the batch program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.cache.arena import Tables
from hasten.config.schema import SampleConfig
from hasten.prepare.points import foreground_points
from hasten.sample.host import render_on_host
from hasten.sample.program import BatchProgram, Render, make_program, render
from hasten.sample.types import BatchSpec

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
RENDERS: dict[str, Render] = {"host": render_on_host, "device": render}
"""Both ways from drawn numbers to voxels; the one for a device runs on a CPU as well."""


def tables_of(images: Sequence[np.ndarray], labels: Sequence[np.ndarray], num_classes: int) -> Tables:
    """Images are (C, D, H, W), labels (D, H, W); the layout is that of the cache."""
    points = [foreground_points(label, num_classes, 50, seed=number)[0] for number, label in enumerate(labels)]
    counts = torch.tensor([[array.size for array in found] for found in points])
    sizes = torch.tensor([label.size for label in labels])
    return Tables(
        image=torch.from_numpy(np.concatenate([image.reshape(-1) for image in images])),
        label=torch.from_numpy(np.concatenate([label.reshape(-1) for label in labels])),
        offset=sizes.cumsum(0) - sizes,
        shape=torch.tensor([label.shape for label in labels]),
        points=torch.from_numpy(np.concatenate([array for found in points for array in found])),
        point_start=(counts.reshape(-1).cumsum(0) - counts.reshape(-1)).view_as(counts),
        point_count=counts,
    )


def random_tables(
    shapes: Sequence[Shape], *, num_channels: int = 1, num_classes: int = 3, dtype: str = "float32", seed: int = 0
) -> Tables:
    """Voxels from U(0, 1) and evenly drawn classes; every third case is background only."""
    generator = np.random.default_rng(seed)
    images = [generator.random((num_channels, *shape)).astype(dtype) for shape in shapes]
    labels = [
        (generator.integers(0, num_classes, shape) * (number % 3 != 2)).astype(np.uint8)
        for number, shape in enumerate(shapes)
    ]
    return tables_of(images, labels, num_classes)


def program_of(
    tables: Tables,
    patch: Shape,
    *,
    batch_size: int = 4,
    seed: int = 0,
    train_cases: tuple[int, ...] | None = None,
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0),
    compile: bool = False,
    renders: str = "",
    **options: Any,
) -> BatchProgram:
    """Everything that `options` does not turn on is off. `renders` is a key of RENDERS, or the program chooses."""
    config = SampleConfig(patch=patch, batch_size=batch_size, **{**OFF, **options})
    voxels = int((tables.shape.prod(1)).sum())
    spec = BatchSpec(
        sample=config,
        num_channels=len(tables.image) // voxels,
        spatial_dims=2 if int(tables.shape[:, 0].max()) == 1 and patch[0] == 1 else 3,
        spacing=spacing,
    )
    cases = train_cases or tuple(range(len(tables.shape)))
    program = make_program(spec, tables, cases, seed, compile=compile)
    return replace(program, render=RENDERS[renders]) if renders else program


def case_image(tables: Tables, case: int) -> Tensor:
    """(C, D, H, W) as stored."""
    num_channels = len(tables.image) // len(tables.label)
    size, start = math.prod(tables.shape[case].tolist()), int(tables.offset[case])
    return tables.image[start * num_channels : (start + size) * num_channels].view(
        num_channels, *tables.shape[case].tolist()
    )


def case_label(tables: Tables, case: int) -> Tensor:
    """(D, H, W) as stored."""
    size, start = math.prod(tables.shape[case].tolist()), int(tables.offset[case])
    return tables.label[start : start + size].view(*tables.shape[case].tolist())


def cut(volume: Tensor, start: Sequence[int], patch: Shape) -> Tensor:
    """The plain slice of (C, D, H, W) that begins at `start`, with zeros where it leaves the volume."""
    piece = volume.new_zeros((len(volume), *patch))
    inside, outside = [slice(None)], [slice(None)]
    for first, edge, length in zip(start, patch, volume.shape[1:], strict=True):
        low, high = max(first, 0), min(first + edge, length)
        inside.append(slice(low, high))
        outside.append(slice(low - first, high - first))
    piece[tuple(outside)] = volume[tuple(inside)]
    return piece
