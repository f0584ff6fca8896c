from __future__ import annotations

import gc
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.augment.make_program import program_of
from hasten.augment.program import HostSource, Piece, Program
from hasten.feed.feed import Feed
from hasten.feed.ring import Ring
from tests.augment.stores import random_store, segment_of

CPU = torch.device("cpu")
Batch = dict[str, Tensor]


@pytest.fixture(scope="module")
def program() -> Program:
    store = random_store([(9, 8, 7), (6, 8, 10), (8, 8, 8)])
    strengths = {"affine_prob": 0.5, "foreground_prob": 0.5, "noise_prob": 0.5}
    return program_of(segment_of(store, (4, 5, 6), batch_size=3, seed=3, **strengths))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    gc.collect()
    assert [thread.name for thread in threading.enumerate()].count("hasten-feed") == 0
    assert threading.active_count() <= before  # those of earlier tests may end meanwhile


class Counted:
    """A program of one segment that tells which step it is at, and can fail or be slow."""

    device = CPU

    def __init__(self, fails_at: int | None = None, *, prepared_on_host: bool = False) -> None:
        self.fails_at, self.prepared_on_host = fails_at, prepared_on_host
        self.started: list[int] = []
        self.moved = threading.Condition()

    def prepare(self, first: int, last: int) -> Generator[Batch, None, None]:
        return (self.make(step) for step in range(first, last))

    def finish(self, batch: Batch) -> Batch:
        return batch

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        yield Piece(self, first, last)  # type: ignore[arg-type]

    def make(self, step: int) -> Batch:
        with self.moved:
            self.started.append(step)
            self.moved.notify_all()
        if step == self.fails_at:
            return self.broken_augmentation()
        image = torch.full((2, 1, 3, 3, 3), float(step))
        return {"image": image, "label": image.to(torch.uint8)}

    def broken_augmentation(self) -> Batch:
        raise RuntimeError("no such voxel")

    def wait_for(self, count: int) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: len(self.started) >= count, timeout=30)


def ring(program: Any, *, first: int = 0, last: int = 6, depth: int = 2) -> Ring:
    return Ring(program.prepare(first, last), CPU, depth=depth)


def ringed(program: Program, first: int, last: int, depth: int) -> Iterator[Batch]:
    """The program's batches as far as the host makes them, carried over, and finished."""
    assert program.segment is not None
    segment = replace(program.segment, source=HostSource(stages=1))
    return map(segment.finish, Ring(segment.prepare(first, last), CPU, depth=depth))


def check_equal(result: Batch, wanted: Batch) -> None:
    assert result.keys() == wanted.keys()
    for key in result:
        assert result[key].dtype == wanted[key].dtype
        assert torch.equal(result[key], wanted[key])


@pytest.mark.parametrize(("first", "last"), [(0, 5), (3, 9), (1000, 1002), (4, 4)])
def test_in_line_a_feed_is_the_program(program: Program, first: int, last: int) -> None:
    batches = list(Feed(program, first=first, last=last))
    assert len(batches) == last - first
    for step, batch in zip(range(first, last), batches, strict=True):
        check_equal(batch, program(step))


@pytest.mark.parametrize("depth", [1, 2, 3, 7])
@pytest.mark.parametrize(("first", "last"), [(0, 6), (5, 9), (1000, 1001), (4, 4)])
def test_a_ring_gives_the_same_batches_in_the_same_order(program: Program, depth: int, first: int, last: int) -> None:
    steps = iter(range(first, last))
    for step, batch in zip(steps, ringed(program, first, last, depth), strict=False):
        check_equal(batch, program(step))
    assert next(steps, None) is None


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_slots_are_allocated_once_and_taken_in_turn(depth: int) -> None:
    places = [
        (image.data_ptr(), label.data_ptr()) for image, label in map(dict.values, ring(Counted(), last=10, depth=depth))
    ]
    assert len(set(places)) == depth
    assert places == (places[:depth] * 10)[:10]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_batch_holds_until_the_next_one_is_asked_for(depth: int) -> None:
    program = Counted()
    for step, batch in enumerate(ring(program, last=8, depth=depth)):
        image, label = batch.values()
        # The thread goes on as far as it can: it fills the other slots, then waits, with a batch in hand, for this one.
        program.wait_for(min(step + depth + 1, 8))
        time.sleep(0.002)
        assert program.started == list(range(min(step + depth + 1, 8)))
        assert torch.equal(image, torch.full_like(image, step))
        assert torch.equal(label, torch.full_like(label, step))


def test_nothing_is_made_before_the_first_batch_is_asked_for() -> None:
    program = Counted()
    batches = iter(ring(program))
    assert program.started == []
    next(batches)
    batches.close()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_an_error_in_the_thread_is_raised_in_the_consumer_in_its_turn(depth: int) -> None:
    batches = iter(ring(Counted(fails_at=3), depth=depth))
    assert [int(next(batches)["label"].max()) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="no such voxel") as raised:
        next(batches)
    frames = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert frames[-2:] == ["make", "broken_augmentation"]
    assert "_fill" in frames


@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_leaving_early_ends_the_thread(depth: int, taken: int) -> None:
    program = Counted()
    batches = iter(ring(program, last=1_000_000, depth=depth))
    assert len(list(islice(batches, taken))) == taken
    batches.close()
    assert not any(thread.name == "hasten-feed" for thread in threading.enumerate())
    assert len(program.started) <= taken + depth


class Clock:
    """Time that passes only when somebody says so."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now


def test_only_waiting_for_data_counts_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("hasten.feed.feed.time", clock)

    class Slow(Counted):
        def make(self, step: int) -> Batch:
            clock.now += 2.0
            return super().make(step)

    feed = Feed(Slow(), first=0, last=4)  # type: ignore[arg-type]
    assert feed.wait_seconds == 0
    waits = []
    for _ in feed:
        waits.append(feed.wait_seconds)
        clock.now += 50.0
    assert waits == [2.0, 4.0, 6.0, 8.0]
    assert feed.wait_seconds == 8.0
