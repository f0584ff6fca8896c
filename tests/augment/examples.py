"""Every operation that changes values, with prob=1: what the contract suite runs."""

from __future__ import annotations

from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import AdjustContrast, Contrast, Gamma
from hasten.augment.intensity import (
    Brightness,
    Normalize,
    ScaleIntensity,
    ScaleIntensityRange,
    ShiftIntensity,
)
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.noise import GaussianNoise
from hasten.augment.op import ValueOp
from hasten.augment.smooth import Blur, GaussianSmooth

EXAMPLES: list[ValueOp] = [
    GaussianNoise(prob=1, mean=0.1, std=(0.2, 0.5)),
    ColorJitter(prob=1, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2),
    ColorJitter(prob=1, brightness=(0.5, 0.9), contrast=0.5),
    ColorJitter(prob=1, saturation=(0.2, 0.6), hue=0.1, value_range=255),
    ColorJitter(prob=1, hue=(0.05, 0.4)),
    AdjustContrast(prob=1),
    AdjustContrast(prob=1, gamma=(0.5, 0.9), invert_image=True),
    AdjustContrast(prob=1, retain_stats=True),
    AdjustContrast(prob=1, invert_image=True, retain_stats=True),
    Gamma(prob=1),
    Gamma(prob=1, p_invert_image=1.0, p_retain_stats=0.0),
    Gamma(prob=1, p_invert_image=0.5, p_retain_stats=0.5, p_per_channel=0.7, synchronize_channels=True),
    Gamma(prob=1, gamma=(1.2, 2.0), around_one=False),
    Contrast(prob=1),
    Contrast(prob=1, contrast_range=(0.5, 2.0), preserve_range=False, synchronize_channels=True),
    Contrast(prob=1, p_per_channel=0.7, around_one=False),
    ShiftIntensity(prob=1, offsets=(0.1, 0.5)),
    ShiftIntensity(prob=1, offsets=(-0.5, 0.5), channel_wise=True),
    ScaleIntensity(prob=1, factors=(-0.5, 0.5)),
    ScaleIntensity(prob=1, factors=(0.1, 0.5), channel_wise=True),
    Brightness(prob=1),
    Brightness(prob=1, multiplier_range=(0.5, 2.0), synchronize_channels=True, p_per_channel=0.7, around_one=False),
    ScaleIntensityRange(prob=1, a_min=-0.5, a_max=0.7, b_min=-1.0, b_max=1.0, clip=True),
    ScaleIntensityRange(prob=1, a_min=0.2, a_max=0.7),
    Normalize(prob=1),
    Normalize(prob=1, nonzero=True, channel_wise=True),
    Normalize(prob=1, subtrahend=0.3, divisor=2.0),
    SimulateLowResolution(prob=1),
    SimulateLowResolution(prob=1, zoom_range=(0.2, 0.8), half_pixel=False),
    SimulateLowResolution(prob=1, zoom_range=(0.3, 0.7), synchronize_channels=False),
    SimulateLowResolution(prob=1, synchronize_channels=False, ignore_axes=(0,)),
    SimulateLowResolution(prob=1, zoom_range=(0.5, 0.6), synchronize_channels=False, p_per_channel=0.9),
    GaussianSmooth(prob=1),
    GaussianSmooth(prob=1, sigma_x=(0.5, 3.0), sigma_y=(0.2, 0.3), sigma_z=(1.0, 1.0)),
    Blur(prob=1),
    Blur(prob=1, blur_sigma=(0.1, 2.5)),
    Blur(prob=1, p_per_channel=0.7),
]
