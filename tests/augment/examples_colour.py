"""Examples for the contract suite."""

from __future__ import annotations

from hasten.augment.colour import ColorJitter
from hasten.augment.op import ValueOp

EXAMPLES: list[ValueOp] = [
    ColorJitter(prob=1, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2),
    ColorJitter(prob=1, brightness=(0.5, 0.9), contrast=0.5),
    ColorJitter(prob=1, saturation=(0.2, 0.6), hue=0.1, value_range=255),
    ColorJitter(prob=1, hue=(0.05, 0.4)),
]
