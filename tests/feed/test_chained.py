"""Batches of a chain, in line."""

from __future__ import annotations

import torch

from hasten.feed.chained import ChainFeed
from tests.augment.test_program import equal, program


def test_batches_are_the_programs() -> None:
    own = program(3, "all")
    feed = ChainFeed(own, device="cpu", first=2, last=5)
    for step, batch in zip(range(2, 5), feed, strict=True):
        assert equal(batch, own(step))
    assert feed.wait_seconds > 0


def test_batches_are_carried_where_the_data_lie_elsewhere() -> None:
    own = program(3, "values")

    class Elsewhere:
        device = torch.device("meta")
        batches = staticmethod(own.batches)

    feed = ChainFeed(Elsewhere(), device="cpu", last=6)
    seen = 0
    for step, batch in enumerate(feed):
        assert equal(batch, own(step))
        seen += 1
    assert seen == 6
    for batch in ChainFeed(Elsewhere(), device="cpu", last=6):
        assert set(batch) == {"image", "label"}
        break
