"""Arguments of operations that can't be: each is refused by name. One row an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.augment.affine import PhysicalAffine
from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import AdjustContrast, Contrast, Gamma
from hasten.augment.crop import ForegroundCrop
from hasten.augment.grid import Cut
from hasten.augment.intensity import (
    Brightness,
    Normalize,
    ScaleIntensity,
    ScaleIntensityRange,
    ShiftIntensity,
)
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.smooth import Blur, GaussianSmooth
from hasten.sample.random import sample_key

KEY = sample_key(torch.tensor(0), torch.arange(2))
MADE: list[tuple[Any, dict[str, Any], str]] = [
    (PhysicalAffine, {"zoom": (0.0, 1.0)}, r"zoom="),
    (PhysicalAffine, {"zoom": (1.2, 0.8)}, r"zoom="),
    (PhysicalAffine, {"spacing": (1.0, 0.0, 1.0)}, r"spacing="),
    (AdjustContrast, {"gamma": (2.0, 1.0)}, "gamma="),
    (AdjustContrast, {"gamma": (0.0, 1.0)}, "gamma=.*above 0"),
    (Gamma, {"gamma": (-1.0, 1.0)}, "gamma="),
    (Gamma, {"gamma": (0.5, 0.9)}, "gamma=.*around_one=False"),
    (Gamma, {"p_invert_image": -0.1}, "p_invert_image="),
    (Gamma, {"p_retain_stats": 1.1}, "p_retain_stats="),
    (Gamma, {"p_per_channel": 1.1}, "p_per_channel="),
    (Contrast, {"contrast_range": (2.0, 1.0)}, "contrast_range="),
    (Contrast, {"p_per_channel": 1.1}, "p_per_channel="),
    (GaussianSmooth, {"sigma_y": (2.0, 1.0)}, "sigma_y="),
    (GaussianSmooth, {"sigma_z": (-1.0, 1.0)}, "sigma_z="),
    (Blur, {"blur_sigma": (2.0, 1.0)}, "blur_sigma="),
    (Blur, {"p_per_channel": 1.5}, "p_per_channel="),
    (ShiftIntensity, {"offsets": (1, 0)}, "offsets="),
    (ScaleIntensity, {"factors": (1, 0)}, "factors="),
    (Brightness, {"p_per_channel": 2.0}, "p_per_channel="),
    (Brightness, {"multiplier_range": (0.5, 0.9)}, "multiplier_range=.*around_one=False"),
    (ScaleIntensityRange, {"a_min": 0, "a_max": 0.0}, "a_min and a_max"),
    (ScaleIntensityRange, {"a_min": 0, "a_max": 1, "clip": True}, "clip=True"),
    (Normalize, {"divisor": (1.0, 2.0)}, "divisor=.*channel_wise=True"),
    (SimulateLowResolution, {"zoom_range": (0.0, 1.0)}, r"zoom_range=\(0\.0, 1\.0\)"),
    (SimulateLowResolution, {"zoom_range": (1.0, 0.5)}, r"zoom_range=\(1\.0, 0\.5\)"),
    (SimulateLowResolution, {"p_per_channel": -1}, "p_per_channel=-1"),
    (ColorJitter, {"brightness": -0.1}, "brightness=-0.1"),
    (ColorJitter, {"contrast": (1.2, 0.8)}, "contrast=.*wrong way round"),
    (ColorJitter, {"saturation": (-0.5, 1.0)}, "saturation=.*below 0"),
    (ColorJitter, {"saturation": (0.5, 1.0, 2.0)}, "saturation=.*a number or"),
    (ColorJitter, {"hue": 0.6}, "hue=.*below -0.5"),
    (ColorJitter, {"hue": (0.0, 0.7)}, "hue=.*above 0.5"),
    (ColorJitter, {"value_range": 0}, "value_range=0"),
    (ForegroundCrop, {"size": (4, 4, 4), "foreground_prob": 1.5}, r"foreground_prob=1\.5"),
    (ForegroundCrop, {"size": (0, 4, 4)}, "size"),
    (Cut, {"size": (0, 4, 4)}, r"size=\(0, 4, 4\)"),
    (Cut, {"size": (4, 4, 4), "prob": 2}, "prob=2"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), MADE, ids=lambda each: getattr(each, "__name__", str(each)))
def test_an_argument_that_can_not_be_is_named(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{make.__name__}: .*{message}"):
        make(**arguments)


def applied(op: Any, channels: int, drawn_for: int) -> Tensor:
    return op.apply(torch.rand(2, channels, 8, 8), op.draw(KEY, (drawn_for, 8, 8)))


DRAWN: list[tuple[Callable[[], object], str]] = [
    (
        lambda: SimulateLowResolution(ignore_axes=(2,)).draw(KEY, (1, 8, 8)),
        r"SimulateLowResolution: ignore_axes=\(2,\)",
    ),
    (
        lambda: Normalize(subtrahend=(1.0, 2.0), channel_wise=True).apply(torch.rand(2, 3, 4, 5), {}),
        r"Normalize: subtrahend=.*3 channels",
    ),
    (lambda: ColorJitter(hue=0.1).draw(KEY, (1, 8, 8)), "ColorJitter.* 1 channel"),
    (lambda: applied(ColorJitter(hue=0.1), 4, 3), "ColorJitter.* 4 channel"),
]


@pytest.mark.parametrize(("call", "message"), DRAWN, ids=lambda each: each if isinstance(each, str) else "")
def test_an_argument_that_does_not_fit_the_image_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
