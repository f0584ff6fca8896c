from __future__ import annotations

import weakref
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.feed.feed import Feed
from hasten.feed.rounds import RoundedProgram, Rounds
from hasten.feed.staged import Stage, StagedProgram, feed_of, make_staged, stage_plan
from hasten.sample.program import BatchProgram, make_program
from tests.sample.arenas import program_of, random_tables
from tests.sample.test_share import same

CPU = torch.device("cpu")
PATCH = (8, 8, 4)
TABLES = random_tables([(9, 8, 7), (8, 8, 8), (7, 9, 8)], dtype="float16")
SPEC = program_of(TABLES, PATCH, batch_size=2, affine_prob=0.5).spec


def stages(*given: Any, steps: int = 20) -> tuple[Stage, ...]:
    return stage_plan(given, steps, PATCH, (2, 2, 2), 2, keep_voxels=True)


def of_round(number: int, plan: tuple[Stage, ...]) -> BatchProgram | StagedProgram:
    """A program whose seed is the round's number."""

    def make(spec: Any) -> BatchProgram:
        return make_program(spec, TABLES, (0, 1, 2), number, compile=False)

    return make(SPEC) if len(plan) == 1 else make_staged(SPEC, plan, make)


class Made:
    """Makes the programs of rounds and remembers which."""

    def __init__(self, plan: tuple[Stage, ...]) -> None:
        self.plan, self.rounds = plan, list[int]()

    def __call__(self, number: int) -> BatchProgram | StagedProgram:
        self.rounds.append(number)
        return of_round(number, self.plan)


@given(
    samples=st.integers(1, 60), shares=st.lists(st.floats(0.1, 0.4), max_size=2), steps=st.integers(1, 80),
    first=st.integers(0, 50), count=st.integers(0, 60),
)  # fmt: skip
def test_rounds_are_a_function_of_the_step(
    samples: int, shares: list[float], steps: int, first: int, count: int
) -> None:
    given = [(sum(shares[: number + 1]), 0.5 + 0.25 * number) for number in range(len(shares))]
    rounds = Rounds(stages=stages(*given, steps=steps), samples=samples)
    pieces = rounds.cut(first, first + count)
    assert [step for _, begin, end in pieces for step in range(begin, end)] == list(range(first, first + count))
    assert all(rounds.at(step) == number for number, begin, end in pieces for step in range(begin, end))
    assert all(one[0] < other[0] for one, other in pairwise(pieces))
    assert rounds.at(0) == 0


def test_a_round_begins_with_the_first_batch_after_the_last_one() -> None:
    rounds = Rounds(stages=stages(), samples=7)
    assert rounds.cut(0, 12) == [(0, 0, 4), (1, 4, 7), (2, 7, 11), (3, 11, 12)]


@pytest.mark.parametrize("plan", [stages(), stages((0.3, 0.5), (0.6, 0.75))], ids=["one size", "staged"])
def test_batches_are_those_of_their_round(plan: tuple[Stage, ...]) -> None:
    rounds = Rounds(stages=plan, samples=14)
    made = Made(plan)
    program = RoundedProgram(rounds, made)
    whole = list(feed_of(program, device=CPU, first=0, last=20))
    assert made.rounds == sorted(set(made.rounds))
    assert len(whole) == 20
    for step, batch in enumerate(whole):
        wanted = of_round(rounds.at(step), plan)
        assert same(batch, wanted(step))
    for first, last in [(0, 3), (5, 20), (19, 20), (3, 3)]:
        later = RoundedProgram(rounds, Made(plan), first=first)
        for found, wanted in zip(later.batches(first, last), whole[first:last], strict=True):
            assert same(found, wanted)
        for found, wanted in zip(feed_of(later, device=CPU, first=first, last=last), whole[first:last], strict=True):
            assert same(found, wanted)
    assert same(program(2), whole[2])
    assert program.samples(0, 20) == sum(stage.samples for stage in plan)
    assert program.stage(0) == plan[0]
    assert (program.compiled, program.why, program.compile_seconds) == (False, "not asked for", 0.0)


@pytest.mark.parametrize("plan", [stages(), stages((0.5, 0.5))], ids=["one size", "staged"])
@pytest.mark.parametrize("device", [CPU, torch.device("meta")], ids=["in line", "carried"])
def test_a_rounds_cases_are_gone_when_the_next_ones_are_made(
    plan: tuple[Stage, ...], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref] = []

    def make(number: int) -> BatchProgram | StagedProgram:
        assert not any(each() is not None for each in held)
        tables = random_tables([(9, 8, 7), (8, 8, 8)], seed=number)
        held.append(weakref.ref(tables.image))

        def one(spec: Any) -> BatchProgram:
            return make_program(spec, tables, (0, 1), 0, compile=False)

        return one(SPEC) if len(plan) == 1 else make_staged(SPEC, plan, one)

    program = RoundedProgram(Rounds(stages=plan, samples=14), make)
    feed = feed_of(program, device=device, first=0, last=20)
    assert sum(1 for _ in feed) == 20
    assert len(held) > 2
    assert feed.wait_seconds > 0


def test_waiting_for_a_round_is_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from hasten.feed import feed as feed_module
    from hasten.feed import staged

    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0])
    monkeypatch.setattr(staged, "time", clock)
    monkeypatch.setattr(feed_module, "time", clock)

    def make(number: int) -> BatchProgram | StagedProgram:
        now[0] += 10.0
        return of_round(number, stages())

    feed = feed_of(RoundedProgram(Rounds(stages=stages(), samples=10), make), device=CPU, first=0, last=12)
    assert sum(1 for _ in feed) == 12
    assert feed.wait_seconds == 20.0  # the program of the first round was made before


def test_a_feed_that_is_left_ends_its_threads() -> None:
    import threading

    feed = feed_of(
        RoundedProgram(Rounds(stages=stages(), samples=10), Made(stages())),
        device=torch.device("meta"), first=0, last=100,
    )  # fmt: skip
    batches = iter(feed)
    for _ in range(7):
        next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "hasten-feed"]
    assert isinstance(feed_of(of_round(0, stages()), device=CPU, first=0, last=1), Feed)
