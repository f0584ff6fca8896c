"""Every operation that changes values, with prob=1: what the contract suite runs."""

from __future__ import annotations

from hasten.augment.noise import GaussianNoise, RicianNoise
from hasten.augment.op import ValueOp

NOISE: list[ValueOp] = [
    GaussianNoise(prob=1, mean=0.1, std=(0.2, 0.5)),
    RicianNoise(prob=1, std=(0.2, 0.5)),
]

EXAMPLES: list[ValueOp] = [*NOISE]
