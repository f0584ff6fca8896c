"""Examples for the contract suite."""

from __future__ import annotations

from hasten.augment.fourier import GibbsNoise, KSpaceSpikeNoise
from hasten.augment.op import ValueOp

EXAMPLES: list[ValueOp] = [
    GibbsNoise(prob=1, alpha=(0.5, 0.9)),
    KSpaceSpikeNoise(prob=1, intensity_range=(5.0, 7.0)),
    KSpaceSpikeNoise(prob=1),
    KSpaceSpikeNoise(prob=1, channel_wise=False),
]
