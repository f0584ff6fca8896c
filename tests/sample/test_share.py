"""What the ranks make together is what a single process makes, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hasten.cache.arena import Arena
from hasten.cache.homes import part_of
from hasten.feed.feed import Feed
from hasten.feed.staged import StagedProgram, feed_of, make_staged, stage_plan
from hasten.prepare.types import Geometry
from hasten.sample.mixed import MixedProgram, make_mixed
from hasten.sample.program import BatchProgram, make_program
from hasten.sample.share import WHOLE, Share, share_mistake
from tests.sample.arenas import RENDERS, program_of, random_tables

CPU = torch.device("cpu")
SHAPES = [(9, 8, 7), (6, 8, 10), (8, 8, 8), (7, 9, 8), (8, 6, 9)]
CASES = (4, 0, 1, 3, 2)
SETTINGS: dict[str, Any] = {
    "batch_size": 8, "seed": 5, "affine_prob": 0.5, "foreground_prob": 0.5, "flip_prob": (0.5, 0.5, 0.5),
    **{f"{name}_prob": 0.5 for name in ("brightness", "contrast", "gamma", "noise")},
}  # fmt: skip
PATCH = (8, 8, 4)
WORLDS = [(1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1)]
"""(ranks, pieces)"""


def joined(shares: list[tuple[Tensor, ...]], pieces: int) -> tuple[Tensor, ...]:
    """The batch whose pieces are those of all ranks, one rank after another."""
    cut = [[value.chunk(pieces) for value in share] for share in shares]
    return tuple(
        torch.cat([own[number][piece] for piece in range(pieces) for own in cut]) for number in range(len(shares[0]))
    )


def same(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def plain(share: Share, renders: str = "host", seed: int = 5) -> BatchProgram:
    tables = random_tables(SHAPES, num_channels=2, dtype="float16")
    whole = program_of(tables, PATCH, **SETTINGS)
    made = make_program(whole.spec, tables, CASES, seed, compile=False, share=share)
    return replace(made, render=RENDERS[renders])


def mixed(share: Share) -> MixedProgram:
    tables = random_tables(SHAPES, dtype="float16")
    arena = Arena(
        tables=tables, ids=tuple("abcde"), shapes=tuple(SHAPES), offsets=tuple(tables.offset.tolist()),
        geometry=tuple[Geometry, ...](), num_channels=1, num_classes=3, home="mixed",
    )  # fmt: skip
    arena = replace(arena, part=part_of(arena, (1, 3), CPU))
    return make_mixed(program_of(tables, PATCH, **SETTINGS).spec, arena, CASES, 5, compile=False, share=share)


def staged(share: Share) -> StagedProgram:
    tables = random_tables(SHAPES, dtype="float16")
    stages = stage_plan(((0.3, 0.5), (0.6, 0.75)), 10, PATCH, (2, 2, 2), 8, keep_voxels=True)
    make = partial(make_program, tables=tables, train_cases=CASES, seed=5, compile=False, share=share)
    return make_staged(program_of(tables, PATCH, **SETTINGS).spec, stages, lambda spec: make(spec))


@pytest.mark.parametrize(("size", "pieces"), WORLDS)
@pytest.mark.parametrize("kind", ["plain", "device", "mixed", "staged"])
def test_shares_are_the_batch(kind: str, size: int, pieces: int) -> None:
    make: Any = {"plain": plain, "device": partial(plain, renders="device"), "mixed": mixed, "staged": staged}[kind]
    ranks = [make(Share(rank, size, pieces)) for rank in range(size)]
    for first, last in [(0, 5), (7, 9)]:
        feeds = [feed_of(program, device=CPU, first=first, last=last) for program in ranks]
        wanted = feed_of(make(WHOLE), device=CPU, first=first, last=last)
        count = 0
        for batch, *shares in zip(wanted, *feeds, strict=True):
            # Rendered on its own a sample rounds otherwise in the last bit, on the device's way alone.
            found = joined(shares, pieces)
            if kind == "device":
                assert torch.equal(found[1], batch[1])
                assert torch.allclose(found[0], batch[0], atol=1e-6)
            else:
                assert same(found, batch)
            count += 1
        assert count == last - first


@pytest.mark.parametrize("step", [0, 3, 31, 32, 1000])
def test_any_step_can_be_the_first(step: int) -> None:
    program = plain(Share(1, 2, 2))
    later = list(program.batches(max(0, step - 2), step + 1))[-1]
    assert same(program(step), later)
    (batch,) = Feed(program, device=CPU, first=step, last=step + 1)
    assert same(batch, later)


def test_a_share_has_its_shape_whatever_the_step() -> None:
    for batch in plain(Share(1, 4)).batches(0, 40):
        assert batch[0].shape == (2, 2, *PATCH)


@given(
    size=st.integers(1, 6), pieces=st.integers(1, 4), each=st.integers(1, 3), steps=st.integers(1, 3),
    step=st.integers(0, 50),
)  # fmt: skip
def test_slots_and_numbers_are_the_same_rule(size: int, pieces: int, each: int, steps: int, step: int) -> None:
    batch = size * pieces * each
    sample = torch.arange(step * batch, (step + steps) * batch)
    seen: list[int] = []
    for rank in range(size):
        share = Share(rank, size, pieces)
        own = share.cut(sample, batch).tolist()
        assert own == [number for at in range(step, step + steps) for number in share.numbers(at, batch)]
        assert len(own) == steps * share.count(batch)
        seen += own
        # A rank's part of piece k lies in the single process's piece k.
        for place, number in enumerate(own[: share.count(batch)]):
            assert place // each == (number - step * batch) // (batch // pieces)
    assert sorted(seen) == sample.tolist()


def test_rows_of_any_form_are_cut() -> None:
    rows = torch.arange(48).view(8, 2, 3)
    assert torch.equal(Share(1, 2).cut(rows, 4), rows[[2, 3, 6, 7]])


@pytest.mark.parametrize(
    ("batch_size", "accumulate", "size", "parts", "told"),
    [
        (6, 1, 4, 0, r"sample\.batch_size: 6 .* 4 processes; use 4 or 8, or start 3 of them"),
        (6, 2, 2, 0, r"2 processes in each of 2 pieces \(train\.accumulate\); use 4 or 8, or start 1 of them"),
        (3, 1, 8, 0, r"use 8, or start 3 of them"),
        (7, 2, 4, 0, r"use 8$"),
        (8, 1, 2, 3, r"distribute\.parts: 3 parts can't be dealt among 2 processes; use 2 or 4"),
        (6, 1, 2, 4, r"6 can't be dealt among 4 parts \(distribute\.parts\); use 4 or 8$"),
        (6, 1, 1, 4, r"use 4 or 8"),
    ],
)
def test_what_cannot_be_dealt_is_told(batch_size: int, accumulate: int, size: int, parts: int, told: str) -> None:
    import re

    found = share_mistake(batch_size, accumulate, size, parts)
    assert found is not None
    assert re.search(told, found), found


@given(
    batch_size=st.integers(1, 64), accumulate=st.integers(1, 4), size=st.integers(1, 8), parts=st.integers(0, 3)
)  # fmt: skip
def test_what_is_advised_works(batch_size: int, accumulate: int, size: int, parts: int) -> None:
    found = share_mistake(batch_size, accumulate, size, parts * size)
    if found is None:
        assert size * parts == 0 or batch_size % (accumulate * size * parts) == 0
        assert size == 1 or batch_size % (accumulate * size) == 0
        return
    advised, _, fewer = found.partition("use ")[2].partition(", or start ")
    for number in advised.split(" or "):
        assert share_mistake(int(number), accumulate, size, parts * size) is None
    if fewer:
        assert share_mistake(batch_size, accumulate, int(fewer.split()[0]), parts * size) is None


def test_a_program_refuses_a_batch_that_cannot_be_dealt() -> None:
    with pytest.raises(ValueError, match=r"sample\.batch_size: 8 can't be dealt among 3 processes; use 6 or 9"):
        plain(Share(0, 3))
