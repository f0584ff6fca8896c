"""Transforms of values: with numbers that leave nothing to chance, a lowered one gives what MONAI gives."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    NormalizeIntensityd,
    RandAdjustContrastd,
    RandGaussianNoised,
    RandGaussianSmoothd,
    RandScaleIntensityd,
    RandShiftIntensityd,
    RandSimulateLowResolutiond,
    RandTorchVisiond,
    ScaleIntensityd,
    ScaleIntensityRanged,
)

from hasten.augment.colour import ColorJitter
from tests.augment.lowering import both, error, item, lowered, why

KEY = "image"
RANDOM_FIRST = RandShiftIntensityd(KEY, offsets=(0.2, 0.2), prob=1)
"""Before a deterministic transform, which would be cached otherwise."""

FIXED: list[tuple[Any, ...]] = [
    (RandGaussianNoised(KEY, prob=1, mean=0.3, std=0.0),),
    (RandGaussianNoised(KEY, prob=1, mean=-0.3, std=0.0, sample_std=False),),
    
    
    (RandShiftIntensityd(KEY, offsets=(0.4, 0.4), prob=1),),
    (RandShiftIntensityd(KEY, offsets=(0.4, 0.4), prob=1, channel_wise=True),),
    (RandScaleIntensityd(KEY, factors=(0.4, 0.4), prob=1),),
    (RandScaleIntensityd(KEY, factors=(-0.4, -0.4), prob=1, channel_wise=True),),
    
    
    
    
    
    
    (RandAdjustContrastd(KEY, gamma=(1.7, 1.7), prob=1),),
    (RandAdjustContrastd(KEY, gamma=(0.6, 0.6), prob=1, invert_image=True, retain_stats=True),),
    (RandGaussianSmoothd(KEY, sigma_x=(0.7, 0.7), sigma_y=(0.9, 0.9), sigma_z=(1.1, 1.1), prob=1),),
    
    
    (RANDOM_FIRST, NormalizeIntensityd(KEY, channel_wise=True)),
    (RANDOM_FIRST, NormalizeIntensityd(KEY, nonzero=True)),
    (RANDOM_FIRST, NormalizeIntensityd(KEY, subtrahend=0.5, divisor=2.0)),
    (RANDOM_FIRST, NormalizeIntensityd(KEY, subtrahend=[0.5, 1.0], divisor=[2.0, 3.0], channel_wise=True)),
    (RANDOM_FIRST, ScaleIntensityRanged(KEY, a_min=-1, a_max=2, b_min=0, b_max=1, clip=True)),
    (RANDOM_FIRST, ScaleIntensityRanged(KEY, a_min=-1, a_max=2)),
    (RANDOM_FIRST, ScaleIntensityd(KEY, minv=None, maxv=None, factor=0.3)),
]  # fmt: skip


@pytest.mark.parametrize("chain", FIXED, ids=lambda chain: type(chain[-1]).__name__)
@pytest.mark.parametrize("dims", [2, 3])
def test_with_fixed_numbers_it_is_monais(chain: tuple[Any, ...], dims: int) -> None:
    result, wanted = both(*chain, dims=dims)
    assert error(result["image"], wanted["image"]) < 2e-4
    assert torch.equal(result["label"], wanted["label"])
    assert not torch.equal(result["image"], torch.stack([item(dims, seed=seed)["image"] for seed in range(2)]))


@pytest.mark.parametrize("dims", [2, 3])
def test_low_resolution_is_monais(dims: int) -> None:
    mode = "trilinear" if dims == 3 else "bilinear"
    result, wanted = both(RandSimulateLowResolutiond(KEY, prob=1, zoom_range=(0.6, 0.6), upsample_mode=mode), dims=dims)
    assert error(result["image"], wanted["image"]) < 2e-4


NEVER: list[Any] = [
    RandGaussianNoised(KEY, prob=0.0),
]


@pytest.mark.parametrize("transform", NEVER, ids=lambda each: type(each).__name__)
def test_with_probability_0_nothing_changes(transform: Any) -> None:
    result, wanted = both(transform)
    assert torch.equal(result["image"], wanted["image"])


def ops(*chain: Any, **options: Any) -> tuple[Any, ...]:
    return lowered(*chain, **options).plan.ops


def jitter(dtype: Any) -> ColorJitter:
    """Torchvision's, whose class need not be installed."""
    transform = RandTorchVisiond.__new__(RandTorchVisiond)
    own = SimpleNamespace(brightness=(0.8, 1.2), contrast=None, saturation=[0.9, 1.1], hue=(-0.1, 0.1))
    transform.keys, transform.allow_missing_keys = ("image",), False
    transform.name, transform.trans = "ColorJitter", SimpleNamespace(trans=own)
    image = torch.zeros(3, 8, 8, dtype=dtype)
    program = lowered(transform)._for_item({"image": image}, "item 0", torch.device("cpu"))
    return program.plan.ops[0]


def test_torchvisions_colour_jitter() -> None:
    result = jitter(torch.float32)
    assert (result.brightness, result.contrast, result.saturation, result.hue) == (
        (0.8, 1.2),
        0.0,
        (0.9, 1.1),
        (-0.1, 0.1),
    )
    assert result.value_range == 1.0
    assert jitter(torch.uint8).value_range == 255.0


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (RandGaussianNoised(KEY, dtype=np.float16), "computes in dtype=float16"),
        (RandScaleIntensityd(KEY, factors=0.1, dtype=np.uint8), "computes in dtype=uint8"),
        (RandSimulateLowResolutiond(("image", "label")), "draws other numbers"),
        (RandSimulateLowResolutiond(KEY, downsample_mode="area"), "downsample_mode=area"),
        (RandSimulateLowResolutiond(KEY, upsample_mode="nearest"), "upsample_mode=nearest"),
        (RandShiftIntensityd(KEY, offsets=0.1, factor_key="f"), "factor_key"),
        (RandGaussianSmoothd(KEY, approx="sampled"), 'approx="sampled"'),
        (RandGaussianNoised(KEY, allow_missing_keys=True), "allow_missing_keys=True"),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_is_left_to_monai(transform: Any, message: str) -> None:
    assert message in why(transform)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (NormalizeIntensityd(KEY, subtrahend=np.zeros((2, 4, 4, 4))), "for each voxel"),
        (NormalizeIntensityd(KEY, subtrahend=0.5, channel_wise=True), "one for each channel"),
        (ScaleIntensityd(KEY), "a range of its own"),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_is_left_to_monai_after_random_ones(transform: Any, message: str) -> None:
    assert message in why(RANDOM_FIRST, transform)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (RandGaussianSmoothd(KEY, sigma_x=(1.5, 0.5)), r"RandGaussianSmoothd .*sigma_x=\(1\.5, 0\.5\)"),
        (RandGaussianNoised(KEY, std=-1.0), r"RandGaussianNoised .*std=\(0\.0, -1\.0\)"),
        (RandAdjustContrastd(KEY, gamma=(-1, 2)), r"RandAdjustContrastd .*gamma=\(-1\.0, 2\.0\)"),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_monai_lets_pass_is_refused(transform: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lowered(transform)
