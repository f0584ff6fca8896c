"""Which patches and which deal of the cases each step has."""

from __future__ import annotations

from itertools import accumulate, pairwise
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.sample.patch_stages import DealingRounds, PatchStage, stage_plan

PATCH, UNIT, BATCH = (8, 8, 4), (2, 2, 2), 2
HALVES = ((0.3, 0.5), (0.6, 0.75))


def plan(stages: Any = HALVES, steps: int = 10, *, keep_voxels: bool = False, **options: Any) -> tuple[PatchStage, ...]:
    return stage_plan(stages, steps, PATCH, UNIT, BATCH, keep_voxels, **options)


def test_a_plan_is_what_was_asked_for() -> None:
    planned = plan()
    assert [(stage.first, stage.last, stage.patch) for stage in planned] == [
        (0, 3, (4, 4, 2)), (3, 6, (6, 6, 4)), (6, 10, (8, 8, 4)),
    ]  # fmt: skip
    assert all((stage.batch_size, stage.ahead) == (2, 0) for stage in planned)
    assert plan(()) == (PatchStage(first=0, last=10, patch=PATCH, batch_size=2, ahead=0),)
    # What rounds to the same patch is one stage, and a share of no step is none.
    assert len(plan(((0.2, 1.0), (0.4, 0.99)))) == 1
    assert [stage.patch for stage in plan(((0.01, 0.5), (0.51, 0.75)))] == [(6, 6, 4), PATCH]
    assert plan(((1.0, 0.5),))[-1].patch == (4, 4, 2)


def test_as_many_voxels_are_a_step() -> None:
    planned = plan(((0.5, 0.5),), keep_voxels=True)
    assert [stage.batch_size for stage in planned] == [16, 2]
    assert [(stage.first, stage.last) for stage in planned] == [(0, 5), (5, 10)]
    # 80 samples are 40 batches of two: the next is number 40, at step 5.
    assert [stage.ahead for stage in planned] == [0, 35]


@given(
    shares=st.lists(st.tuples(st.floats(0.01, 0.3), st.floats(0.05, 1.0)), max_size=3),
    steps=st.integers(1, 500),
    multiples=st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(1, 8)),
    divisor=st.sampled_from([(1, 16, 16), (4, 4, 4), (2, 8, 8)]),
    batch_size=st.integers(1, 8),
    keep_voxels=st.booleans(),
    least=st.integers(1, 3),
)
def test_every_plan_is_sound(
    shares: Any, steps: int, multiples: Any, divisor: Any, batch_size: int, keep_voxels: bool, least: int
) -> None:
    patch = tuple(number * unit for number, unit in zip(multiples, divisor, strict=True))
    shares = list(zip(accumulate(share for share, _ in shares), (factor for _, factor in shares), strict=True))
    result = stage_plan(shares, steps, patch, divisor, batch_size, keep_voxels, least=least)  # type: ignore[arg-type]
    assert result[0].first == 0
    assert result[-1].last == steps
    for one, other in pairwise(result):
        assert one.last == other.first
        # Samples never come twice, and fewer than a batch are left out.
        gap = (other.first + other.ahead) * other.batch_size - (one.last + one.ahead) * one.batch_size
        assert 0 <= gap < other.batch_size
    for stage in result:
        assert stage.first < stage.last
        for side, full, unit in zip(stage.patch, patch, divisor, strict=True):
            assert side % unit == 0
            assert min(full, least * unit) <= side <= full
        coarsest = prod(side // unit for side, unit in zip(stage.patch, divisor, strict=True))
        assert coarsest > 1 or prod(multiples) == 1
        assert stage.batch_size >= batch_size
        assert stage.batch_size * prod(stage.patch) <= batch_size * prod(patch)
        if not keep_voxels:
            assert (stage.batch_size, stage.ahead) == (batch_size, 0)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (((0.0, 0.5),), "above 0"),
        (((0.5, 1.5),), "up to 1"),
        (((0.5, 0.0),), "above 0"),
        (((0.6, 0.5), (0.6, 0.7)), "longer than"),
    ],
)
def test_a_plan_that_is_none_is_told(stages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"sample\.stages: .*{message}"):
        plan(stages)


@given(
    samples=st.integers(1, 60), shares=st.lists(st.floats(0.1, 0.4), max_size=2), steps=st.integers(1, 80),
    first=st.integers(0, 50), count=st.integers(0, 60),
)  # fmt: skip
def test_rounds_are_a_function_of_the_step(
    samples: int, shares: list[float], steps: int, first: int, count: int
) -> None:
    given = [(sum(shares[: number + 1]), 0.5 + 0.25 * number) for number in range(len(shares))]
    rounds = DealingRounds(stages=plan(given, steps, keep_voxels=True), samples=samples)
    pieces = rounds.cut(first, first + count)
    assert [step for _, begin, end in pieces for step in range(begin, end)] == list(range(first, first + count))
    assert all(rounds.at(step) == number for number, begin, end in pieces for step in range(begin, end))
    assert all(one[0] < other[0] for one, other in pairwise(pieces))
    assert rounds.at(0) == 0


def test_a_round_begins_with_the_first_batch_after_the_last_one() -> None:
    rounds = DealingRounds(stages=plan((), 20), samples=7)
    assert rounds.cut(0, 12) == [(0, 0, 4), (1, 4, 7), (2, 7, 11), (3, 11, 12)]
