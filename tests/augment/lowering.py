"""Items, and a chain run by MONAI and by Hasten side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from monai.transforms import Compose
from scipy.ndimage import gaussian_filter
from torch import Tensor

from hasten.augment.from_monai import TransformProgram, compile_transforms
from hasten.augment.steps import FUSED

KEYS = ("image", "label")
SIZES = {2: (18, 22), 3: (12, 16, 14)}


def item(dims: int = 3, size: tuple[int, ...] | None = None, channels: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """A smooth image of several channels and a label of three classes."""
    rng = np.random.default_rng(seed)
    shape = size or SIZES[dims]
    image = np.stack([gaussian_filter(rng.normal(size=shape), 1.5) for _ in range(channels)]) * 4 + 1
    label = np.digitize(gaussian_filter(rng.normal(size=shape), 2.0), [-0.02, 0.03])
    return {
        "image": torch.from_numpy(image.astype(np.float32)),
        "label": torch.from_numpy(label.astype(np.uint8))[None],
    }


def batch_of(*items: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: torch.stack([each[key] for each in items]) for key in items[0]}


def lowered(*transforms: Any, **options: Any) -> TransformProgram:
    """A program with nothing left to MONAI. Raises ValueError otherwise."""
    return compile_transforms(Compose(list(transforms)), strict=True, **options)


def why(*transforms: Any, at: int = -1, **options: Any) -> str:
    """Why a transform of a chain (its last) is not lowered; "" if it is."""
    step = compile_transforms(Compose(list(transforms)), **options).plan.steps[at]
    return "" if step.how == FUSED else step.why


def both(*transforms: Any, dims: int = 3, **options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What Hasten's operations make of a batch of two items, and MONAI's transforms of one item after the other."""
    own = [item(dims, seed=seed, **options) for seed in range(2)]
    program = lowered(*transforms)
    batches = program({key: value.clone() for key, value in batch_of(*own).items()}, seed=3)
    chain = Compose(list(transforms))
    wanted = batch_of(*[plain(chain({key: value.clone() for key, value in each.items()})) for each in own])
    return batches, wanted


def plain(sample: dict[str, Any]) -> dict[str, Tensor]:
    return {key: torch.as_tensor(sample[key]).as_subclass(Tensor) for key in KEYS if key in sample}


def error(result: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the range of what is wanted."""
    assert result.shape == wanted.shape, (result.shape, wanted.shape)
    scale = float(wanted.float().abs().max())
    return float((result.float() - wanted.float()).abs().max()) / max(scale, 1e-6)


def inner(image: Tensor, margin: int) -> Tensor:
    """(B, C, *S) without its border."""
    return image[(slice(None), slice(None), *[slice(margin, -margin)] * (image.ndim - 2))]
