"""The parts, in the order of their worth, and how a budget of seconds is dealt out to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    """Its module in this package, whose `measure` fills a sheet."""
    title: str
    least: float
    """Seconds below which it is not worth a start; kept back for it by those before it."""
    most: float
    """Seconds that it never takes more than."""


PARTS = (
    Part("card", "versions, card, ceilings, conv3d probe", 20, 60),
    Part("tests", "the tests of tests/gpu", 40, 150),
    Part("steps", "step ladder of two networks", 30, 170),
    Part("feed", "overhead of the feed, batches against MONAI, waits", 25, 100),
    Part("kernels", "norms, losses, joins, convolutions of few channels: ms and GB/s", 20, 60),
    Part("profile", "where the GPU's time goes in a step, kernel by kernel", 15, 50),
    Part("fill", "cache fill and the arena's way to the device", 20, 45),
    Part("sliding", "sliding window against MONAI", 20, 45),
    Part("target", "time to target on a phantom twin of the spleen", 110, 1800),
    Part("atrium", "the left atrium beside its published recipe", 130, 300),
    Part("gate", "MONAI's own gate of training speed", 40, 120),
)


def parts_named(names: Sequence[str]) -> list[Part]:
    """In their own order, whatever the order of the names."""
    return [part for part in PARTS if part.name in names]


def seconds_for(part: Part, later: Sequence[Part], left: float) -> float | None:
    """What a part may take of the seconds that are left; None where that is less than it is worth starting with.

    The least of each later part is kept back as long as this one has its own least; where there is too little for all,
    earlier parts are served first.
    """
    kept = sum(other.least for other in later)
    own = min(part.most, max(left - kept, min(part.least, left)))
    return own if own >= part.least else None
