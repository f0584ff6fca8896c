"""What the ranks make together is what a single process makes, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.augment.chain import Batch
from hasten.augment.program import Program, Segment
from hasten.feed.feed import Feed
from hasten.sample.patch_stages import DealingRounds, stage_plan
from hasten.sample.share import WHOLE, Share, share_mistake
from tests.augment.stores import Shape, batch_by, random_store, segment_of

SHAPES: list[Shape] = [(9, 8, 7), (6, 8, 10), (8, 8, 8), (7, 9, 8), (8, 6, 9)]
CASES = (4, 0, 1, 3, 2)
SETTINGS: dict[str, Any] = {
    "affine_prob": 0.5, "foreground_prob": 0.5, "flip_prob": (0.5, 0.5, 0.5),
    **{f"{name}_prob": 0.5 for name in ("brightness", "contrast", "gamma", "noise")},
}  # fmt: skip
PATCH = (8, 8, 4)
STORE = random_store(SHAPES, num_channels=2, dtype="float16")
WORLDS = [(1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1)]
"""(ranks, pieces)"""


def joined(shares: list[Batch], pieces: int) -> Batch:
    """The batch whose pieces are those of all ranks, one rank after another."""
    cut = [{key: value.chunk(pieces) for key, value in share.items()} for share in shares]
    return {key: torch.cat([own[key][piece] for piece in range(pieces) for own in cut]) for key in shares[0]}


def same(result: Batch, wanted: Batch) -> bool:
    return result.keys() == wanted.keys() and all(torch.equal(result[key], wanted[key]) for key in wanted)


def segment(share: Share = WHOLE, patch: Shape = PATCH, batch_size: int = 8, **binding: Any) -> Segment:
    return segment_of(
        STORE, patch, batch_size=batch_size, seed=5, train_cases=CASES, binding={"share": share, **binding}, **SETTINGS
    )


def on_host(share: Share, first: int, last: int) -> list[Batch]:
    return list(segment(share).batches(first, last))


def on_device(share: Share, first: int, last: int) -> list[Batch]:
    return [batch_by("device", segment(share), step) for step in range(first, last)]


def staged(share: Share, first: int, last: int) -> list[Batch]:
    stages = stage_plan(((0.3, 0.5), (0.6, 0.75)), 10, PATCH, (2, 2, 2), 8, keep_voxels=True)
    program = Program(lambda _, stage: segment(share, stage.patch, stage.batch_size), DealingRounds(stages=stages))
    return list(Feed(program, first=first, last=last))


KINDS: dict[str, Callable[[Share, int, int], list[Batch]]] = {"host": on_host, "device": on_device, "staged": staged}


@pytest.mark.parametrize(("size", "pieces"), WORLDS)
@pytest.mark.parametrize("kind", KINDS)
def test_shares_are_the_batch(kind: str, size: int, pieces: int) -> None:
    for first, last in [(0, 5), (7, 9)]:
        ranks = [KINDS[kind](Share(rank, size, pieces), first, last) for rank in range(size)]
        for batch, *shares in zip(KINDS[kind](WHOLE, first, last), *ranks, strict=True):
            result = joined(shares, pieces)
            # Rendered on its own a sample rounds otherwise in the last bit, on the device's way alone.
            torch.testing.assert_close(result, batch, rtol=0, atol=1e-6 if kind == "device" else 0)


@pytest.mark.parametrize("step", [0, 3, 31, 32, 1000])
def test_any_step_can_be_the_first(step: int) -> None:
    own = segment(Share(1, 2, 2))
    later = list(own.batches(max(0, step - 2), step + 1))[-1]
    assert same(own(step), later)


@given(
    size=st.integers(1, 6), pieces=st.integers(1, 4), each=st.integers(1, 3), steps=st.integers(1, 3),
    step=st.integers(0, 50),
)  # fmt: skip
def test_the_shares_of_a_piece_are_the_piece_of_one_process(
    size: int, pieces: int, each: int, steps: int, step: int
) -> None:
    batch = size * pieces * each
    sample = torch.arange(step * batch, (step + steps) * batch)
    seen: list[int] = []
    for rank in range(size):
        share = Share(rank, size, pieces)
        own = share.cut(sample, batch).tolist()
        assert len(own) == steps * share.count(batch)
        seen += own
        # A rank's part of piece k lies in the single process's piece k.
        for place, number in enumerate(own[: share.count(batch)]):
            assert place // each == (number - step * batch) // (batch // pieces)
    assert sorted(seen) == sample.tolist()


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "size", "parts", "message"),
    [
        (6, 1, 4, 0, r"sample\.batch_size: 6 .* 4 processes; use 4 or 8, .*start 3"),
        (6, 2, 2, 0, r"2 processes .*\(train\.accumulate\); use 4 or 8, .*start 1"),
        (3, 1, 8, 0, r"use 8, or start 3 of them"),
        (7, 2, 4, 0, r"use 8$"),
        (8, 1, 2, 3, r"distribute\.parts: 3 parts .* 2 processes; use 2 or 4"),
        (6, 1, 2, 4, r"6 .* 4 parts \(distribute\.parts\); use 4 or 8$"),
        (6, 1, 1, 4, r"use 4 or 8"),
    ],
)
def test_what_cannot_be_dealt_is_told(batch_size: int, accumulate: int, size: int, parts: int, message: str) -> None:
    result = share_mistake(batch_size, accumulate, size, parts)
    assert result is not None
    assert re.search(message, result), result
