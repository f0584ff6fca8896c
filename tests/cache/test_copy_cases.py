"""Some cases of an arena in memory of their own: bit for bit what they were."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hasten.cache.arena import Arena
from hasten.cache.build import copy_cases
from hasten.prepare.types import Geometry
from tests.augment.stores import random_store

SHAPES = [(9, 8, 7), (6, 8, 10), (8, 8, 8), (7, 9, 8), (8, 6, 9)]
PLACE = Geometry(
    source_shape=(1, 1, 1),
    source_affine=((1.0, 0.0, 0.0, 0.0),) * 4,
    permute=(0, 1, 2),
    flip=(False,) * 3,
    crop_start=(0, 0, 0),
    crop_shape=(1, 1, 1),
    spacing=(1.0, 1.0, 1.0),
    shape=(1, 1, 1),
)


def arena_of(num_channels: int = 2, num_classes: int = 3) -> Arena:
    """Five cases a to e; c has no foreground."""
    store = random_store(SHAPES, num_channels=num_channels, num_classes=num_classes, dtype="float16")
    return Arena(
        store=replace(store, ids=tuple("abcde")),
        shapes=tuple(SHAPES),
        offsets=tuple(store.offset.tolist()),
        geometry=tuple(replace(PLACE, shape=shape) for shape in SHAPES),
        num_classes=num_classes,
        home="file",
    )


def content(arena: Arena, name: str) -> tuple[list, ...]:
    """All that the arena holds of a case."""
    (case,) = arena.index((name,))
    sets = arena.store.sets
    assert sets is not None
    starts, counts = sets.first[case].tolist(), sets.num[case].tolist()
    points = [sets.points[first : first + count].tolist() for first, count in zip(starts, counts, strict=True)]
    return (
        arena.image(case).tolist(),
        arena.label(case).tolist(),
        points,
        arena.store.shape[case].tolist(),
        [arena.geometry[case]],
    )


@pytest.mark.parametrize("names", ["d", "ca", "edcba", "c"])
@pytest.mark.parametrize("num_channels", [1, 2])
def test_copied_cases_are_what_they_were(names: str, num_channels: int) -> None:
    whole = arena_of(num_channels)
    result = copy_cases(whole, whole.index(tuple(names)), "cpu")
    assert result.ids == tuple(names)
    assert result.home == "ram"
    for name in names:
        assert content(result, name) == content(whole, name)
    assert result.case_bytes == tuple(whole.case_bytes[case] for case in whole.index(tuple(names)))
    whole.store.values["image"].zero_()
    assert result.store.values["image"].any()
