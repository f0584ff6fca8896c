"""Some cases on the device, some on the host: the same batches as with all in one place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.cache.arena import Arena
from hasten.cache.homes import part_of
from hasten.feed.feed import Feed
from hasten.prepare.types import Geometry
from hasten.sample.mixed import MixedProgram, make_mixed
from hasten.sample.program import BatchProgram
from tests.sample.arenas import program_of, random_tables

CPU = torch.device("cpu")
SHAPES = [(9, 8, 7), (6, 8, 10), (8, 8, 8), (7, 9, 8)]
SETTINGS: dict[str, Any] = {
    "batch_size": 3, "seed": 5, "affine_prob": 0.5, "foreground_prob": 0.5, "flip_prob": (0.5, 0.5, 0.5),
    **{f"{name}_prob": 0.5 for name in ("brightness", "contrast", "gamma", "noise")},
}  # fmt: skip


def programs(on_device: tuple[int, ...], num_channels: int) -> tuple[BatchProgram, MixedProgram]:
    tables = random_tables(SHAPES, num_channels=num_channels, dtype="float16")
    whole = program_of(tables, (4, 5, 6), **SETTINGS)
    arena = Arena(
        tables=tables, ids=("a", "b", "c", "d"), shapes=tuple(SHAPES), offsets=tuple(tables.offset.tolist()),
        geometry=tuple[Geometry, ...](), num_channels=num_channels, num_classes=3, home="mixed",
    )  # fmt: skip
    part = part_of(arena, on_device, CPU)
    arena = Arena(**{name: getattr(arena, name) for name in arena.__slots__} | {"part": part})
    return whole, make_mixed(whole.spec, arena, (0, 1, 2, 3), SETTINGS["seed"], compile=False)


@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize("on_device", [(0,), (1, 3), (0, 1, 2, 3)])
def test_a_mixed_batch_is_the_batch(on_device: tuple[int, ...], num_channels: int) -> None:
    whole, mixed = programs(on_device, num_channels)
    batches = Feed(mixed, device=CPU, first=2, last=14)
    count = 0
    for (image, label), (wanted_image, wanted_label) in zip(batches, whole.batches(2, 14), strict=True):
        assert torch.equal(label, wanted_label)
        assert torch.allclose(image, wanted_image, atol=1e-5)
        count += 1
    assert count == 12


def test_each_side_renders_its_own_cases_only() -> None:
    whole, mixed = programs((1, 3), 1)
    for share, drawn in zip(mixed.host_batches(0, 20), whole.draws(0, 20), strict=True):
        here = torch.isin(drawn.case, torch.tensor([1, 3]))
        assert torch.equal(share[2] >= 0, here)
        assert not share[0][here].any()
        assert share[0][~here].flatten(1).any(1).all()
