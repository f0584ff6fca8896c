"""Examples for the contract suite."""

from __future__ import annotations

from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.op import ValueOp

EXAMPLES: list[ValueOp] = [
    SimulateLowResolution(prob=1),
    SimulateLowResolution(prob=1, zoom_range=(0.2, 0.8), half_pixel=False),
    SimulateLowResolution(prob=1, zoom_range=(0.3, 0.7), synchronize_channels=False, synchronize_axes=False),
    SimulateLowResolution(prob=1, synchronize_channels=False, ignore_axes=(0,), allowed_channels=(0,)),
    SimulateLowResolution(prob=1, zoom_range=(0.5, 0.6), synchronize_channels=False, p_per_channel=0.9),
]
