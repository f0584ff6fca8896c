"""Examples for the contract suite."""

from __future__ import annotations

from hasten.augment.op import ValueOp
from hasten.augment.rescale import Rescale

EXAMPLES: list[ValueOp] = [
    Rescale(prob=1, minv=-1.0, maxv=2.0),
    Rescale(prob=1, minv=0.5, channel_wise=True),
]
