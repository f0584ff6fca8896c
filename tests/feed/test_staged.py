from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.cache.arena import Arena
from hasten.cache.homes import part_of
from hasten.feed.feed import Feed
from hasten.feed.staged import Stage, StagedFeed, StagedProgram, feed_of, make_staged, stage_plan
from hasten.prepare.types import Geometry
from hasten.sample.mixed import MixedProgram, make_mixed
from hasten.sample.order import cases_of
from hasten.sample.program import BatchProgram, make_program
from hasten.sample.types import BatchSpec
from tests.sample.arenas import OFF, program_of, random_tables

CPU = torch.device("cpu")
SHAPES = [(9, 8, 7), (6, 8, 10), (8, 8, 8), (7, 9, 8), (8, 6, 9)]
SETTINGS: dict[str, Any] = {
    "batch_size": 2, "seed": 5, "affine_prob": 0.5, "foreground_prob": 0.5, "noise_prob": 0.5,
}  # fmt: skip
PATCH, UNIT = (8, 8, 4), (2, 2, 2)
HALVES = ((0.3, 0.5), (0.6, 0.75))


def plan(stages: Any = HALVES, steps: int = 10, *, keep_voxels: bool = False, **options: Any) -> tuple[Stage, ...]:
    return stage_plan(stages, steps, PATCH, UNIT, SETTINGS["batch_size"], keep_voxels, **options)


def staged(kind: str, stages: tuple[Stage, ...]) -> StagedProgram:
    tables = random_tables(SHAPES, dtype="float16")
    whole = program_of(tables, PATCH, **SETTINGS)
    if kind == "in memory":
        return make_staged(
            whole.spec, stages, lambda spec: make_program(spec, tables, (0, 1, 2, 3, 4), 5, compile=False)
        )
    arena = Arena(
        tables=tables, ids=tuple("abcde"), shapes=tuple(SHAPES), offsets=tuple(tables.offset.tolist()),
        geometry=tuple[Geometry, ...](), num_channels=1, num_classes=3, home="mixed",
    )  # fmt: skip
    part = part_of(arena, (1, 3), CPU)
    arena = Arena(**{name: getattr(arena, name) for name in arena.__slots__} | {"part": part})
    return make_staged(whole.spec, stages, lambda spec: make_mixed(spec, arena, (0, 1, 2, 3, 4), 5, compile=False))


def check_equal(found: Any, wanted: Any) -> None:
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in wanted]
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_plan_is_what_was_asked_for() -> None:
    found = plan()
    assert [(stage.first, stage.last, stage.patch) for stage in found] == [
        (0, 3, (4, 4, 2)), (3, 6, (6, 6, 4)), (6, 10, (8, 8, 4)),
    ]  # fmt: skip
    assert all((stage.batch_size, stage.ahead) == (2, 0) for stage in found)
    assert plan(()) == (Stage(first=0, last=10, patch=PATCH, batch_size=2, ahead=0),)
    # What rounds to the same patch is one stage, and a share of no step is none.
    assert len(plan(((0.2, 1.0), (0.4, 0.99)))) == 1
    assert [stage.patch for stage in plan(((0.01, 0.5), (0.51, 0.75)))] == [(6, 6, 4), PATCH]
    assert plan(((1.0, 0.5),))[-1].patch == (4, 4, 2)


def test_as_many_voxels_are_a_step() -> None:
    found = plan(((0.5, 0.5),), keep_voxels=True)
    assert [stage.batch_size for stage in found] == [16, 2]
    assert [stage.samples for stage in found] == [80, 10]
    # 80 samples are 40 batches of two: the next is number 40, at step 5.
    assert [stage.ahead for stage in found] == [0, 35]


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
    found = stage_plan(shares, steps, patch, divisor, batch_size, keep_voxels, least=least)  # type: ignore[arg-type]
    assert found[0].first == 0
    assert found[-1].last == steps
    for one, other in pairwise(found):
        assert one.last == other.first
        # Samples never come twice, and fewer than a batch are left out.
        gap = (other.first + other.ahead) * other.batch_size - (one.last + one.ahead) * one.batch_size
        assert 0 <= gap < other.batch_size
    for stage in found:
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


def test_a_flat_patch_stays_flat() -> None:
    assert stage_plan(((0.5, 0.5),), 10, (1, 64, 64), (1, 8, 8), 4)[0].patch == (1, 32, 32)


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        (((0.0, 0.5),), "above 0"),
        (((0.5, 1.5),), "up to 1"),
        (((0.5, 0.0),), "above 0"),
        (((0.6, 0.5), (0.6, 0.7)), "longer than"),
    ],
)
def test_a_plan_that_is_none_is_told(stages: Any, told: str) -> None:
    with pytest.raises(ValueError, match=rf"sample\.stages: .*{told}"):
        plan(stages)


@pytest.mark.parametrize("keep_voxels", [False, True])
@pytest.mark.parametrize("kind", ["in memory", "mixed"])
def test_a_batch_is_a_function_of_the_step_alone(kind: str, keep_voxels: bool) -> None:
    program = staged(kind, plan(keep_voxels=keep_voxels))
    whole = list(program.batches(0, 13))
    assert [tuple(image.shape[2:]) for image, _ in whole] == [program.stage(step).patch for step in range(13)]
    assert [len(image) for image, _ in whole] == [program.stage(step).batch_size for step in range(13)]
    for first, last in [(0, 2), (2, 4), (3, 6), (5, 13), (6, 7), (12, 13), (4, 4)]:
        found = list(program.batches(first, last))
        assert len(found) == last - first
        for batch, wanted in zip(found, whole[first:last], strict=True):
            check_equal(batch, wanted)
    for step in (0, 3, 9):
        check_equal(program(step), whole[step])


def test_one_stage_is_the_program_itself() -> None:
    tables = random_tables(SHAPES, dtype="float16")
    whole = program_of(tables, PATCH, **SETTINGS)
    program = staged("in memory", plan(()))
    for found, wanted in zip(program.batches(0, 12), whole.batches(0, 12), strict=True):
        check_equal(found, wanted)
    # With as many patches in a step, later stages have the batches that they have without a first one.
    later = list(staged("in memory", plan(((0.5, 0.5),))).batches(5, 8))
    for found, wanted in zip(later, whole.batches(5, 8), strict=True):
        check_equal(found, wanted)


def cases_seen(program: StagedProgram, steps: int) -> list[list[int]]:
    seen = []
    for own, first, last in program.segments(0, steps):
        assert isinstance(own, BatchProgram)
        seen += [drawn.case.tolist() for drawn in own.draws(first, last)]
    return seen


@pytest.mark.parametrize("keep_voxels", [False, True])
def test_cases_keep_their_order_over_the_stages(keep_voxels: bool) -> None:
    stages = plan(keep_voxels=keep_voxels)
    program = staged("in memory", stages)
    found = [case for batch in cases_seen(program, 10) for case in batch]
    # The stream of cases, less the few samples that are left out where batches of another size begin.
    skipped, numbers = 0, list[int]()
    for stage in stages:
        start = -(-(len(numbers) + skipped) // stage.batch_size) * stage.batch_size
        skipped += start - len(numbers) - skipped
        numbers += range(start, start + stage.samples)
    assert found == cases_of(torch.tensor(5), torch.arange(numbers[-1] + 1), 5)[numbers].tolist()
    assert program.samples(0, 10) == len(found) == sum(stage.samples for stage in stages)
    assert program.samples(2, 12) == sum(program.stage(step).batch_size for step in range(2, 12))
    counts = Counter(found).values()
    assert max(counts) - min(counts) <= 2 + skipped


@pytest.mark.parametrize("first", [0, 2, 3, 7])
@pytest.mark.parametrize("kind", ["in memory", "mixed"])
def test_a_feed_gives_the_programs_batches(kind: str, first: int) -> None:
    before = threading.active_count()
    program = staged(kind, plan(keep_voxels=True))
    feed = feed_of(program, device=CPU, first=first, last=10)
    assert isinstance(feed, StagedFeed)
    count = 0
    # A batch holds until the next one is asked for.
    for found, wanted in zip(feed, program.batches(first, 10), strict=True):
        check_equal(found, wanted)
        count += 1
    assert count == 10 - first
    assert feed.wait_seconds > 0
    assert threading.active_count() == before


def test_a_feed_that_is_left_ends_its_thread() -> None:
    before = threading.active_count()
    batches = iter(feed_of(staged("mixed", plan()), device=CPU, first=0, last=1000))
    for _ in range(8):
        next(batches)
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


def test_a_program_of_one_shape_has_a_plain_feed() -> None:
    program = program_of(random_tables(SHAPES), PATCH, **SETTINGS)
    feed = feed_of(program, device=CPU, first=0, last=3)
    assert isinstance(feed, Feed)
    assert len(list(feed)) == 3


def test_what_was_compiled_is_told_by_stage() -> None:
    program = staged("in memory", plan())
    assert not program.compiled
    assert program.why == "not asked for"
    assert program.compile_seconds == 0.0
    tables = random_tables(SHAPES)
    make: Callable[[BatchSpec], BatchProgram | MixedProgram] = partial(
        make_program, tables=tables, train_cases=(0,), seed=0, compile=False
    )
    spec = program_of(tables, PATCH, **{**OFF, **SETTINGS}).spec
    other = make_staged(spec, plan(), make)
    mixed = StagedProgram(stages=other.stages[:2], programs=(other.programs[0], _told(other.programs[1])))
    assert mixed.why == "4 x 4 x 2: not asked for; 6 x 6 x 4: compiled in 3.0 s"


def _told(program: BatchProgram | MixedProgram) -> BatchProgram:
    assert isinstance(program, BatchProgram)
    return replace(program, compiled=True, why="compiled in 3.0 s")
