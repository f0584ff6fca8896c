"""Cases dealt into parts: the stream follows from the parts and the seed, whoever makes it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.augment.program import Segment
from hasten.sample.order import Dealt, part_order
from hasten.sample.share import WHOLE, Share
from tests.augment.reference import case_of, word_at
from tests.augment.reference import sample_key as reference_key
from tests.augment.stores import random_store, segment_of
from tests.sample.test_share import SHAPES, joined, same

PARTS = ((4, 1), (0,), (3, 2, 6), (5, 7))
STORE = random_store([*SHAPES, *SHAPES[:3]], dtype="float16")
SETTINGS: dict[str, Any] = {
    "batch_size": 8, "affine_prob": 0.5, "foreground_prob": 0.5, "flip_prob": (0.5, 0.5, 0.5), "noise_prob": 0.5
}  # fmt: skip


def segment(share: Share = WHOLE, *, seed: int = 5, **dealt: Any) -> Segment:
    cases = Dealt(**{"parts": PARTS, **dealt})
    return segment_of(STORE, (8, 8, 4), seed=seed, train_cases=cases, binding={"share": share}, **SETTINGS)


def cases(own: Segment, steps: int, first: int = 0) -> list[list[int]]:
    return [drawn.case.tolist() for drawn in own.draws(first, first + steps)]


@pytest.mark.parametrize(("size", "pieces"), [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2)])
def test_the_stream_is_the_same_for_any_number_of_ranks(size: int, pieces: int) -> None:
    whole = segment(Share(pieces=pieces))
    ranks = [segment(Share(rank, size, pieces)) for rank in range(size)]
    for first, last in [(0, 6), (33, 35)]:
        batches = [own.batches(first, last) for own in ranks]
        for batch, *shares in zip(whole.batches(first, last), *batches, strict=True):
            assert same(joined(shares, pieces), batch)


def test_a_rank_never_reads_another_ranks_cases() -> None:
    for rank in range(2):
        own = set(PARTS[2 * rank]) | set(PARTS[2 * rank + 1])
        empty = tuple(part if set(part) <= own else () for part in PARTS)
        result = segment(Share(rank, 2), parts=empty)
        assert {case for batch in cases(result, 30) for case in batch} == own
        # What it doesn't know of the others changes nothing.
        assert same(result(7), segment(Share(rank, 2))(7))


@pytest.mark.parametrize("pieces", [1, 2])
def test_each_slot_draws_from_its_part(pieces: int) -> None:
    for batch in cases(segment(Share(pieces=pieces)), 40):
        for slot, case in enumerate(batch):
            assert case in PARTS[slot % (8 // pieces) * 4 // (8 // pieces)]


def test_each_part_visits_each_of_its_cases_once_an_epoch_of_its_own() -> None:
    seen: list[list[int]] = [[], [], [], []]
    for batch in cases(segment(), 60):
        for slot, case in enumerate(batch):
            seen[slot // 2].append(case)
    for part, stream in zip(PARTS, seen, strict=True):
        for epoch in range(len(stream) // len(part)):
            assert sorted(stream[epoch * len(part) : (epoch + 1) * len(part)]) == sorted(part)
    orders = {tuple(seen[2][first : first + 3]) for first in range(0, 60, 3)}
    assert len(orders) > 3


def test_rounds_begin_their_parts_anew() -> None:
    """A round that begins after 30 steps has given 60 samples of each part."""
    later = cases(segment(round=1, begun=60), 12, first=30)
    for part in range(4):
        stream = [case for batch in later for case in batch[2 * part : 2 * part + 2]]
        assert max(Counter(stream).values()) - min(Counter(stream).values()) <= 1
        count = len(PARTS[part])
        assert sorted(stream[:count]) == sorted(PARTS[part])
    assert later != cases(segment(), 12, first=30)
    assert later != cases(segment(round=2, begun=60), 12, first=30)
    assert cases(segment(seed=6), 12) != cases(segment(), 12)


def part_seed(seed: int, part: int) -> int:
    """What a part's own order is keyed by, in the first round."""
    key = reference_key(seed, part)
    return word_at(key, 0x9A47, 0) + ((word_at(key, 0x9A47, 1) >> 1) << 32)


@given(
    parts=st.lists(st.integers(1, 5), min_size=1, max_size=4), repeats=st.integers(1, 3),
    pieces=st.integers(1, 2), each=st.integers(1, 3), step=st.integers(0, 10**6), seed=st.integers(0, 2**62),
)  # fmt: skip
def test_an_order_is_that_of_the_reference_for_the_parts_seed(
    parts: list[int], repeats: int, pieces: int, each: int, step: int, seed: int
) -> None:
    total = len(parts)
    dealt = Dealt(parts=tuple(tuple(range(10 * part, 10 * part + count)) for part, count in enumerate(parts)))
    batch = total * pieces * each
    share = Share(pieces=pieces)
    order = part_order(dealt, seed=torch.tensor(seed), share=share, batch_size=batch, repeats=repeats)
    wanted = [
        10 * part + case_of(part_seed(seed, part), ((at * pieces + piece) * each + place) // repeats, parts[part])
        for at in (step, step + 1)
        for piece in range(pieces)
        for part in range(total)
        for place in range(each)
    ]
    assert order(torch.arange(step * batch, (step + 2) * batch)).tolist() == wanted
