"""Examples of hasten.augment.contrast for the contract suite."""

from __future__ import annotations

from hasten.augment.contrast import AdjustContrast, Contrast, Gamma, HistogramShift
from hasten.augment.op import ValueOp

EXAMPLES: list[ValueOp] = [
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
    HistogramShift(prob=1),
    HistogramShift(prob=1, num_control_points=(3, 12)),
]
