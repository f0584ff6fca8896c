"""Examples for the contract suite."""

from __future__ import annotations

from hasten.augment.op import ValueOp
from hasten.augment.stain import StainJitter

EXAMPLES: list[ValueOp] = [
    StainJitter(prob=1),
    StainJitter(prob=1, alpha=((0.8, 1.2), (0.9, 1.1), (1.0, 1.0)), beta=((-0.1, 0.1), (0.0, 0.0), (-0.02, 0.05))),
    StainJitter(prob=1, alpha=(0.8, 1.2), beta=(-0.2, 0.2), value_range=255),
]
