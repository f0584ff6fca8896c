"""What the ranks make of a chain together is what a single process makes, bit for bit."""

from __future__ import annotations

import pytest

from hasten.augment.from_monai import compile_transforms
from hasten.augment.program import HostSource
from hasten.feed.feed import Feed
from hasten.sample.share import Share
from tests.augment.stores import bind_store
from tests.augment.test_program import CHAINS, chain, equal, program, store
from tests.sample.test_share import joined


@pytest.mark.parametrize(("size", "pieces"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("kind", ["all", "values"])
def test_shares_of_ranks_are_the_batch(kind: str, size: int, pieces: int) -> None:
    whole = program(3, kind, batch_size=8)
    ranks = [
        bind_store(chain(3, *CHAINS[kind]), store(3), batch_size=8, share=Share(rank, size, pieces))
        for rank in range(size)
    ]
    for first, last in [(0, 3), (17, 18)]:
        for step, *shares in zip(range(first, last), *(each.batches(first, last) for each in ranks), strict=True):
            assert equal(joined(shares, pieces), whole(step))


def test_shares_of_a_chain_that_begins_sample_by_sample() -> None:
    from monai.transforms import Compose, RandFlipd, RandLambdad, RandShiftIntensityd, RandSpatialCropd

    from tests.augment.test_from_monai import KEYS, rows

    transforms = [
        RandLambdad("image", func=lambda image: image * 2, prob=0.5),
        RandSpatialCropd(KEYS, roi_size=(6, 6, 6)),
        RandFlipd(KEYS, prob=0.5, spatial_axis=1),
        RandShiftIntensityd("image", offsets=0.2, prob=0.5),
    ]
    lowered, data = compile_transforms(Compose(transforms)), rows(3)
    whole = lowered.bind(data, batch_size=8)
    assert isinstance(whole.latest.source, HostSource)
    for pieces in (1, 2):
        shares = [lowered.bind(data, batch_size=8, share=Share(rank, 2, pieces)) for rank in range(2)]
        assert equal(joined([each(3) for each in shares], pieces), whole(3))
        assert all(equal(next(iter(Feed(each, first=3, last=4))), each(3)) for each in shares)
    with pytest.raises(ValueError, match=r"sample\.batch_size: 8 can't be dealt among 3 processes"):
        lowered.bind(data, batch_size=8, share=Share(0, 3))
