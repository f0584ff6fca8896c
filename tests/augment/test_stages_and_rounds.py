"""Programs whose patches grow and whose cases are dealt anew on the way."""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from hasten.augment.chain import Batch
from hasten.augment.program import HostSource, Program, Segment
from hasten.feed.feed import Feed
from hasten.sample.order import cases_of
from hasten.sample.patch_stages import DealingRounds, PatchStage, stage_at, stage_plan
from tests.augment.stores import Shape, random_store, segment_of

SHAPES: list[Shape] = [(9, 8, 7), (6, 8, 10), (8, 8, 8), (7, 9, 8), (8, 6, 9)]
SETTINGS: dict[str, Any] = {"affine_prob": 0.5, "foreground_prob": 0.5, "noise_prob": 0.5}
PATCH, UNIT = (8, 8, 4), (2, 2, 2)
HALVES = ((0.3, 0.5), (0.6, 0.75))


def plan(stages: Any = HALVES, steps: int = 10, *, keep_voxels: bool = False) -> tuple[PatchStage, ...]:
    return stage_plan(stages, steps, PATCH, UNIT, 2, keep_voxels)


def segment(stage: PatchStage, kind: str = "in memory", seed: int = 5) -> Segment:
    store = random_store(SHAPES, dtype="float16")
    made = segment_of(store, stage.patch, batch_size=stage.batch_size, seed=seed, **SETTINGS)
    return made if kind == "in memory" else replace(made, source=HostSource(stages=1))


def program(kind: str, stages: tuple[PatchStage, ...], samples: int = 0) -> Program:
    """Each round has a seed of its own."""
    return Program(
        lambda number, stage: segment(stage, kind, 5 + number), DealingRounds(stages=stages, samples=samples)
    )


def same(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def copied(batch: Batch) -> Batch:
    return {key: value.clone() for key, value in batch.items()}


kinds = pytest.mark.parametrize("kind", ["in memory", "handed over"])
sizes = pytest.mark.parametrize("keep_voxels", [False, True])


@sizes
@kinds
@pytest.mark.parametrize("samples", [0, 14])
def test_a_batch_is_a_function_of_the_step_alone(kind: str, keep_voxels: bool, samples: int) -> None:
    stages = plan(keep_voxels=keep_voxels)
    own = program(kind, stages, samples)
    whole = list(map(copied, Feed(own, last=13)))
    stage_of_step = [stage_at(own.rounds.stages, step) for step in range(13)]
    assert [tuple(batch["image"].shape[2:]) for batch in whole] == [stage.patch for stage in stage_of_step]
    assert [len(batch["image"]) for batch in whole] == [stage.batch_size for stage in stage_of_step]
    for first, last in [(0, 2), (2, 4), (3, 6), (5, 13), (6, 7), (12, 13), (4, 4)]:
        for result in (list(own.batches(first, last)), list(map(copied, Feed(own, first=first, last=last)))):
            assert len(result) == last - first
            assert all(same(batch, wanted) for batch, wanted in zip(result, whole[first:last], strict=True))
    assert all(same(own(step), whole[step]) for step in (0, 3, 9))


@sizes
def test_cases_keep_their_order_over_the_stages(keep_voxels: bool) -> None:
    stages = plan(keep_voxels=keep_voxels)
    own = program("in memory", stages)
    draws = (each for piece in own.pieces(0, 10) for each in piece.segment.draws(piece.first, piece.last))
    seen = [case for each in draws for case in each.case.tolist()]
    # The stream of cases, less the few samples that are left out where batches of another size begin.
    skipped, numbers = 0, list[int]()
    for stage in stages:
        start = -(-(len(numbers) + skipped) // stage.batch_size) * stage.batch_size
        skipped += start - len(numbers) - skipped
        numbers += range(start, start + (stage.last - stage.first) * stage.batch_size)
    assert seen == cases_of(torch.tensor(5), torch.arange(numbers[-1] + 1), 5)[numbers].tolist()
    assert own.samples(0, 10) == len(seen) == len(numbers)
    assert own.samples(2, 12) == sum(stage_at(own.rounds.stages, step).batch_size for step in range(2, 12))
    counts = Counter(seen).values()
    assert max(counts) - min(counts) <= 2 + skipped


@pytest.mark.parametrize("stages", [plan((), 20), plan(((0.5, 0.5),), 20)], ids=["one size", "staged"])
@pytest.mark.parametrize("carried", [False, True])
def test_a_rounds_cases_are_gone_when_the_next_ones_are_made(stages: tuple[PatchStage, ...], carried: bool) -> None:
    stores: list[weakref.ref] = []
    current: dict[int, Any] = {}

    def make(number: int, stage: PatchStage) -> Segment:
        if number not in current:
            current.clear()
            assert not any(each() is not None for each in stores)
            current[number] = random_store([(9, 8, 7), (8, 8, 8)], seed=number)
            stores.append(weakref.ref(current[number].values["image"]))
        made = segment_of(current[number], stage.patch, batch_size=stage.batch_size)
        return replace(made, source=HostSource(stages=1)) if carried else made

    feed = Feed(Program(make, DealingRounds(stages=stages, samples=14)), last=20)
    assert sum(1 for _ in feed) == 20
    assert len(stores) > 2
    assert feed.wait_seconds > 0


def test_only_the_rounds_that_are_asked_for_are_made() -> None:
    rounds: list[int] = []

    def make(number: int, stage: PatchStage) -> Segment:
        rounds.append(number)
        return segment(stage, seed=number)

    own = Program(make, DealingRounds(stages=plan((), 20), samples=10), first=12)
    assert rounds == [2]
    list(own.batches(12, 20))
    assert rounds == [2, 3]
