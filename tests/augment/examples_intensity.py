"""Examples of hasten.augment.intensity for the contract suite."""

from __future__ import annotations

from hasten.augment.intensity import (
    Brightness,
    Clip,
    Normalize,
    Rescale,
    ScaleIntensity,
    ScaleIntensityFixedMean,
    ScaleIntensityRange,
    ShiftIntensity,
    StdShiftIntensity,
)
from hasten.augment.op import ValueOp

EXAMPLES: list[ValueOp] = [
    ShiftIntensity(prob=1, offsets=(0.1, 0.5)),
    ShiftIntensity(prob=1, offsets=(-0.5, 0.5), channel_wise=True),
    ScaleIntensity(prob=1, factors=(-0.5, 0.5)),
    ScaleIntensity(prob=1, factors=(0.1, 0.5), channel_wise=True),
    StdShiftIntensity(prob=1, factors=(0.5, 1.0)),
    StdShiftIntensity(prob=1, factors=(-1.0, 1.0), nonzero=True, channel_wise=True),
    ScaleIntensityFixedMean(prob=1, factors=(-0.5, 0.5)),
    ScaleIntensityFixedMean(prob=1, factors=(0.2, 0.5), preserve_range=True, channel_wise=True),
    ScaleIntensityFixedMean(prob=1, factors=(0.2, 0.5), fixed_mean=False),
    Brightness(prob=1),
    Brightness(prob=1, multiplier_range=(0.5, 2.0), synchronize_channels=True, p_per_channel=0.7, around_one=False),
    Rescale(prob=1, minv=-1.0, maxv=2.0),
    Rescale(prob=1, minv=0.5, channel_wise=True),
    Clip(prob=1, a_min=0.2, a_max=0.8),
    Clip(prob=1, a_max=0.5),
    ScaleIntensityRange(prob=1, a_min=-0.5, a_max=0.7, b_min=-1.0, b_max=1.0, clip=True),
    ScaleIntensityRange(prob=1, a_min=0.2, a_max=0.7),
    Normalize(prob=1),
    Normalize(prob=1, nonzero=True, channel_wise=True),
    Normalize(prob=1, subtrahend=0.3, divisor=2.0),
]
