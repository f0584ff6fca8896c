"""Examples for the contract suite."""

from __future__ import annotations

from hasten.augment.holes import CoarseDropout, CoarseShuffle
from hasten.augment.op import ValueOp

EXAMPLES: list[ValueOp] = [
    CoarseDropout(prob=1, holes=3, spatial_size=4, fill_value=0.0, max_holes=5),
    CoarseDropout(prob=1, holes=1, spatial_size=2, fill_value=(0.0, 2.0), max_holes=2, max_spatial_size=4),
    CoarseDropout(prob=1, holes=2, spatial_size=2, max_holes=4, max_spatial_size=-1),
    CoarseDropout(prob=1, holes=2, spatial_size=3, dropout_holes=False),
    CoarseShuffle(prob=1, holes=2, spatial_size=2, max_holes=4, max_spatial_size=5),
    CoarseShuffle(prob=1, holes=1, spatial_size=-1),
]
