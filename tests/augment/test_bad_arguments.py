"""Arguments of operations that can't be: each is refused by name. One row an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.augment.affine import PhysicalAffine
from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import AdjustContrast, Contrast, Gamma, HistogramShift
from hasten.augment.crop import ForegroundCrop
from hasten.augment.elastic import Elastic
from hasten.augment.field import BiasField
from hasten.augment.fourier import GibbsNoise, KSpaceSpikeNoise
from hasten.augment.holes import CoarseDropout, CoarseShuffle
from hasten.augment.intensity import (
    Brightness,
    Clip,
    Normalize,
    ScaleIntensity,
    ScaleIntensityFixedMean,
    ScaleIntensityRange,
    ShiftIntensity,
    StdShiftIntensity,
)
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.mix import CutMix, MixUp
from hasten.augment.reshape import Cut, Recentre, Reorder
from hasten.augment.smooth import Blur, GaussianSharpen, GaussianSmooth
from hasten.augment.stain import StainJitter
from hasten.augment.suffix import (
    as_discrete,
    cast,
    convert_to_brats_classes,
    label_to_mask,
    repeat_channel,
    to_channels,
)
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
    (HistogramShift, {"num_control_points": (2, 5)}, "num_control_points="),
    (HistogramShift, {"num_control_points": (6, 5)}, "num_control_points="),
    (GaussianSmooth, {"sigma_y": (2.0, 1.0)}, "sigma_y="),
    (GaussianSmooth, {"sigma_z": (-1.0, 1.0)}, "sigma_z="),
    (GaussianSharpen, {"sigma1_x": (2.0, 1.0)}, "sigma1_x="),
    (GaussianSharpen, {"sigma2_z": -1.0}, "sigma2_z="),
    (GaussianSharpen, {"alpha": (2.0, 1.0)}, "alpha="),
    (Blur, {"blur_sigma": (2.0, 1.0)}, "blur_sigma="),
    (Blur, {"p_per_channel": 1.5}, "p_per_channel="),
    (ShiftIntensity, {"offsets": (1, 0)}, "offsets="),
    (ScaleIntensity, {"factors": (1, 0)}, "factors="),
    (StdShiftIntensity, {"factors": (1, 0)}, "factors="),
    (ScaleIntensityFixedMean, {"factors": (1, 0)}, "factors="),
    (Brightness, {"p_per_channel": 2.0}, "p_per_channel="),
    (Brightness, {"multiplier_range": (0.5, 0.9)}, "multiplier_range=.*around_one=False"),
    (Clip, {}, "a_min and a_max"),
    (Clip, {"a_min": 0, "a_max": -1.0}, "a_min=0"),
    (ScaleIntensityRange, {"a_min": 0, "a_max": 0.0}, "a_min and a_max"),
    (ScaleIntensityRange, {"a_min": 0, "a_max": 1, "clip": True}, "clip=True"),
    (Normalize, {"divisor": (1.0, 2.0)}, "divisor=.*channel_wise=True"),
    (GibbsNoise, {"alpha": (0.5, 1.5)}, r"alpha=\(0\.5, 1\.5\)"),
    (KSpaceSpikeNoise, {"intensity_range": (3.0, 1.0)}, r"intensity_range=\(3\.0, 1\.0\)"),
    (KSpaceSpikeNoise, {"intensity_range": ((1.0, 2.0), (1.0, 3.0)), "channel_wise": False}, "differs by channel"),
    (BiasField, {"degree": 0}, "degree=0"),
    (BiasField, {"coeff_range": (0.2, 0.1)}, r"coeff_range=\(0\.2, 0\.1\)"),
    (Elastic, {"prob": 2}, "prob=2"),
    (Elastic, {"num_control_points": (3, 7, 7)}, r"num_control_points=\(3, 7, 7\)"),
    (Elastic, {"magnitude_range": (-1.0, 1.0)}, r"magnitude_range=\(-1\.0, 1\.0\)"),
    (Elastic, {"num_control_points": (4,), "locked_borders": 2}, "locked_borders=2 leaves no control point"),
    (SimulateLowResolution, {"zoom_range": (0.0, 1.0)}, r"zoom_range=\(0\.0, 1\.0\)"),
    (SimulateLowResolution, {"zoom_range": (1.0, 0.5)}, r"zoom_range=\(1\.0, 0\.5\)"),
    (SimulateLowResolution, {"p_per_channel": -1}, "p_per_channel=-1"),
    (CoarseDropout, {"holes": 0}, "holes=0"),
    (CoarseShuffle, {"holes": 3, "max_holes": 2}, "max_holes=2 is below holes=3"),
    (CoarseDropout, {"fill_value": (2.0, 1.0)}, r"fill_value=\(2\.0, 1\.0\)"),
    (ColorJitter, {"brightness": -0.1}, "brightness=-0.1"),
    (ColorJitter, {"contrast": (1.2, 0.8)}, "contrast=.*wrong way round"),
    (ColorJitter, {"saturation": (-0.5, 1.0)}, "saturation=.*below 0"),
    (ColorJitter, {"saturation": (0.5, 1.0, 2.0)}, "saturation=.*a number or"),
    (ColorJitter, {"hue": 0.6}, "hue=.*below -0.5"),
    (ColorJitter, {"hue": (0.0, 0.7)}, "hue=.*above 0.5"),
    (ColorJitter, {"value_range": 0}, "value_range=0"),
    (StainJitter, {"alpha": (-0.1, 1.0)}, "alpha=.*below 0"),
    (StainJitter, {"alpha": ((0.9, 1.1), (1.1, 0.9), (0.9, 1.1))}, "alpha=.*wrong way round"),
    (StainJitter, {"beta": (0.1, -0.1)}, "beta=.*wrong way round"),
    (StainJitter, {"beta": ((0.0, 0.1), (0.0, 0.1))}, "beta=.*each of the 3 stains"),
    (StainJitter, {"beta": (0.0, 0.1, 0.2)}, "beta=.*each of the 3 stains"),
    (StainJitter, {"value_range": -1}, "value_range=-1"),
    (MixUp, {"prob": 1.5}, "prob=1.5"),
    (MixUp, {"alpha": 0.0}, "alpha=0.0"),
    (CutMix, {"alpha": float("nan")}, "alpha=nan"),
    (CutMix, {"keys": ()}, "keys="),
    (MixUp, {"label_keys": ("label",), "num_classes": 2}, 'label_keys: "label" is not among keys'),
    (MixUp, {"keys": ("label",), "label_keys": ("label",)}, "num_classes=None"),
    (MixUp, {"keys": ("label",), "label_keys": ("label",), "num_classes": 1}, "num_classes=1"),
    (ForegroundCrop, {"size": (4, 4, 4), "foreground_prob": 1.5}, r"foreground_prob=1\.5"),
    (ForegroundCrop, {"size": (0, 4, 4)}, "size"),
    (Cut, {"size": (0, 4, 4)}, r"size=\(0, 4, 4\)"),
    (Cut, {"size": (4, 4, 4), "prob": 2}, "prob=2"),
    (Recentre, {"size": (4, 4)}, r"size=\(4, 4\)"),
    (Reorder, {"order": (0, 0, 1)}, "order"),
    (as_discrete, {"keys": "label", "to_onehot": True}, "to_onehot=True"),
    (as_discrete, {"keys": "label", "to_onehot": 0}, "to_onehot=0"),
    (as_discrete, {"keys": "label", "rounding": "up"}, 'rounding="up"'),
    (as_discrete, {"keys": "label", "rounding": "torchrounding", "threshold": 0.5}, "rounding=.*threshold"),
    (as_discrete, {"keys": "label", "dtype": "colour"}, "dtype=colour"),
    (cast, {"keys": "label", "dtype": str}, "dtype=.*no such type"),
    (cast, {"keys": [], "dtype": "uint8"}, "keys="),
    (convert_to_brats_classes, {"keys": "label", "et_label": 2}, "et_label=2"),
    (to_channels, {"keys": "label", "groups": []}, "groups="),
    (to_channels, {"keys": "label", "groups": [(1,), ()]}, "groups="),
    (label_to_mask, {"keys": "label", "select_labels": []}, "select_labels"),
    (repeat_channel, {"keys": "label", "repeats": 0}, "repeats=0"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), MADE, ids=lambda each: getattr(each, "__name__", str(each)))
def test_an_argument_that_can_not_be_is_named(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{make.__name__}: .*{message}"):
        make(**arguments)


def applied(op: Any, channels: int, drawn_for: int) -> Tensor:
    return op.apply(torch.rand(2, channels, 8, 8), op.draw(KEY, (drawn_for, 8, 8)))


DRAWN: list[tuple[Callable[[], object], str]] = [
    (
        lambda: KSpaceSpikeNoise(intensity_range=((1.0, 2.0), (1.0, 3.0))).draw(KEY, (3, 8, 8)),
        r"KSpaceSpikeNoise: intensity_range.* 2 pairs.* 3 channels",
    ),
    (
        lambda: Elastic(num_control_points=(7, 7)).draw(KEY, (8, 8, 8), 3),
        r"Elastic: num_control_points=\(7, 7\) .* 3 axes",
    ),
    (
        lambda: SimulateLowResolution(ignore_axes=(2,)).draw(KEY, (1, 8, 8)),
        r"SimulateLowResolution: ignore_axes=\(2,\)",
    ),
    (
        lambda: SimulateLowResolution(allowed_channels=(0, 3)).draw(KEY, (2, 8, 8)),
        r"SimulateLowResolution: allowed_channels=\(0, 3\)",
    ),
    (lambda: CoarseDropout(spatial_size=(3, 3)).draw(KEY, (1, 8, 8, 8)), r"spatial_size=\(3, 3\) .* 3 axes"),
    (
        lambda: CoarseShuffle(spatial_size=3, max_spatial_size=2).draw(KEY, (1, 8, 8, 8)),
        "CoarseShuffle: max_spatial_size=2 is below spatial_size=3",
    ),
    (
        lambda: Normalize(subtrahend=(1.0, 2.0), channel_wise=True).apply(torch.rand(2, 3, 4, 5), {}),
        r"Normalize: subtrahend=.*3 channels",
    ),
    (lambda: ColorJitter(hue=0.1).draw(KEY, (1, 8, 8)), "ColorJitter.* 1 channel"),
    (lambda: applied(ColorJitter(hue=0.1), 4, 3), "ColorJitter.* 4 channel"),
    (lambda: StainJitter().draw(KEY, (1, 8, 8)), "StainJitter.* 1 channel"),
    (lambda: applied(StainJitter(), 4, 3), "StainJitter.* 4 channel"),
]


@pytest.mark.parametrize(("call", "message"), DRAWN, ids=lambda each: each if isinstance(each, str) else "")
def test_an_argument_that_does_not_fit_the_image_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
