"""Examples for the contract suite."""

from __future__ import annotations

from hasten.augment.field import BiasField
from hasten.augment.op import ValueOp

EXAMPLES: list[ValueOp] = [
    BiasField(prob=1),
    BiasField(prob=1, degree=1, coeff_range=(-0.5, 0.5)),
    BiasField(prob=1, degree=4, coeff_range=(-0.2, 0.3)),
]
