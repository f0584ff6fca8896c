"""Which case and key each slot of a batch has must not change: a run would then be another run."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hasten.augment.draw import Draws
from hasten.augment.program import Program
from hasten.sample.order import Dealt
from hasten.sample.patch_stages import DealingRounds, PatchStage, stage_plan
from hasten.sample.share import Share
from tests.augment.stores import Shape, random_store, segment_of

GOLDEN: dict[str, str] = json.loads((Path(__file__).parent / "golden_order.json").read_text())
"""Hashes of cases and keys over 64 steps, by name; made before the two sampling systems became one."""
PARTS = ((4, 1), (0,), (3, 2, 6), (5, 7))
CASES: dict[str, Any] = {
    "plain": tuple(range(8)),
    "some": (6, 1, 3),
    "parts": Dealt(parts=PARTS),
    "round 3": Dealt(parts=PARTS, round=3, begun=12),
}
SHAPES: list[Shape] = [(9, 8, 7), (8, 8, 8), (7, 9, 8), (6, 6, 6), (8, 8, 9), (9, 9, 9), (8, 7, 9), (6, 9, 9)]
PLAN = stage_plan(((0.3, 0.5), (0.6, 0.75)), 64, (8, 8, 4), (2, 2, 2), 2, keep_voxels=True)


def digest(draws: Iterable[Draws]) -> str:
    result = hashlib.sha256()
    for each in draws:
        result.update(each.case.numpy().tobytes())
        result.update(each.key.numpy().tobytes())
    return result.hexdigest()[:16]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("size", "pieces"), itertools.product((1, 2, 4), (1, 2)))
@pytest.mark.parametrize("dims", [2, 3])
def test_cases_and_keys_of_every_rank(dims: int, size: int, pieces: int, name: str) -> None:
    shapes = [(1, *shape[1:]) for shape in SHAPES] if dims == 2 else SHAPES
    store, first = random_store(shapes), 40 if name == "round 3" else 0
    for rank in range(size):
        segment = segment_of(
            store, (1, 4, 4) if dims == 2 else (4, 4, 4), batch_size=8, seed=5, train_cases=CASES[name],
            binding={"share": Share(rank, size, pieces)},
        )  # fmt: skip
        assert digest(segment.draws(first, first + 64)) == GOLDEN[f"{dims}-D {name} rank {rank} of {size} in {pieces}"]


@pytest.mark.parametrize("name", ["stages", "rounds of stages"])
def test_cases_and_keys_over_stages_and_rounds(name: str) -> None:
    store = random_store([(9, 8, 7), (8, 8, 8), (7, 9, 8)])
    rounds = DealingRounds(stages=PLAN, samples=24 if name == "rounds of stages" else 0)

    def make(number: int, stage: PatchStage) -> Any:
        seed = number if rounds.samples else 7
        return segment_of(store, stage.patch, batch_size=stage.batch_size, seed=seed)

    pieces = Program(make, rounds).pieces(0, 64)
    assert digest(draws for each in pieces for draws in each.segment.draws(each.first, each.last)) == GOLDEN[name]
