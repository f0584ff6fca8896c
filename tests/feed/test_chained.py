"""Batches of a chain, in line."""

from __future__ import annotations

import pytest
import torch

from hasten.feed.chained import ChainFeed
from hasten.sample.share import Share
from tests.augment.test_program import equal, program
from tests.sample.test_share import joined


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


@pytest.mark.parametrize(("size", "pieces"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("kind", ["all", "values"])
def test_shares_of_ranks_are_the_batch(kind: str, size: int, pieces: int) -> None:
    own = program(3, kind, batch_size=8)
    ranks = [own.shared(Share(rank, size, pieces)) for rank in range(size)]
    for first, last in [(0, 3), (17, 18)]:
        feeds = [ChainFeed(each, device="cpu", first=first, last=last) for each in ranks]
        for step, *shares in zip(range(first, last), *feeds, strict=True):
            wanted = own(step)
            found = joined([tuple(batch.values()) for batch in shares], pieces)
            assert equal(dict(zip(wanted, found, strict=True)), wanted)


def test_a_batch_of_a_chain_that_cannot_be_dealt_is_told() -> None:
    with pytest.raises(ValueError, match=r"sample\.batch_size: 5 can't be dealt among 3 processes"):
        program(3, "values").shared(Share(0, 3))


def test_shares_of_a_chain_that_begins_sample_by_sample() -> None:
    from monai.transforms import Compose, RandFlipd, RandLambdad, RandShiftIntensityd, RandSpatialCropd

    from hasten.augment.compile import compile_transforms
    from hasten.augment.source import SampledProgram
    from tests.augment.test_compile import KEYS, rows

    chain = [
        RandLambdad("image", func=lambda image: image * 2, prob=0.5),
        RandSpatialCropd(KEYS, roi_size=(6, 6, 6)),
        RandFlipd(KEYS, prob=0.5, spatial_axis=1),
        RandShiftIntensityd("image", offsets=0.2, prob=0.5),
    ]
    whole = compile_transforms(Compose(chain)).bind(rows(3), batch_size=8)
    assert isinstance(whole, SampledProgram)
    for pieces in (1, 2):
        shares = [whole.shared(Share(rank, 2, pieces))(3) for rank in range(2)]
        found = joined([tuple(batch.values()) for batch in shares], pieces)
        assert equal(dict(zip(shares[0], found, strict=True)), whole(3))
    with pytest.raises(ValueError, match=r"sample\.batch_size: 8 can't be dealt among 3 processes"):
        whole.shared(Share(0, 3))
