"""Examples of hasten.augment.smooth for the contract suite."""

from __future__ import annotations

from hasten.augment.op import ValueOp
from hasten.augment.smooth import Blur, GaussianSharpen, GaussianSmooth

EXAMPLES: list[ValueOp] = [
    GaussianSmooth(prob=1),
    GaussianSmooth(prob=1, sigma_x=(0.5, 3.0), sigma_y=(0.2, 0.3), sigma_z=(1.0, 1.0)),
    GaussianSharpen(prob=1),
    GaussianSharpen(prob=1, sigma2_x=(0.1, 2.0), sigma2_y=1.5, alpha=(1.0, 3.0)),
    Blur(prob=1),
    Blur(prob=1, blur_sigma=(0.1, 2.5), synchronize_channels=True),
    Blur(prob=1, synchronize_axes=True, p_per_channel=0.7),
]
