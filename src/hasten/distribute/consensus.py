"""Checks across ranks before training: no rank failed, and all ranks run the same code, data and settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import distributed

from hasten.distribute.world import World

T = TypeVar("T")


class Agreed(ValueError):
    """A user's mistake that this rank reports for all of them."""


class OtherRankFailed(SystemExit):
    """Another rank reports what went wrong; this one exits with the same code and prints nothing."""

    def __init__(self) -> None:
        super().__init__(2)


def on_all(world: World, work: Callable[[], T], *, group: distributed.ProcessGroup | None = None) -> T:
    """Run `work()` on every rank. A ValueError on any rank ends all ranks; the lowest such rank raises its own.

    Other exceptions are raised where they happen; the launcher then ends the job.
    """
    if world.size == 1:
        return work()
    failure: ValueError | None = None
    result: T | None = None
    try:
        result = work()
    except ValueError as error:
        failure = error
    try:
        messages = _gathered(str(failure) if failure is not None else None, group)
    except RuntimeError:
        # The other ranks are gone, or wait elsewhere until they time out: raise the error that they would have got.
        if failure is not None:
            raise failure from None
        raise
    failed = [rank for rank, message in enumerate(messages) if message is not None]
    if not failed:
        return result  # type: ignore[return-value]
    if failure is None or world.rank != failed[0]:
        raise OtherRankFailed
    if len(failed) < world.size:
        raise Agreed(f"{failure} (on {world}; {len(failed)} of {world.size} ranks failed)") from failure
    raise Agreed(str(failure)) from failure


def from_first(world: World, value: T | None, *, group: distributed.ProcessGroup | None = None) -> T:
    """Return rank 0's value on every rank; the values of the others are ignored."""
    if world.size == 1:
        return value  # type: ignore[return-value]
    payload = [value]
    distributed.broadcast_object_list(payload, src=0, group=group)
    return payload[0]  # type: ignore[return-value]


def by_first(world: World, work: Callable[[], T], *, group: distributed.ProcessGroup | None = None) -> T:
    """Run `work()` on rank 0 and return its result on every rank; a ValueError ends all ranks, as in `on_all`."""
    return from_first(world, on_all(world, lambda: work() if world.first else None, group=group), group=group)


def require_same(world: World, facts: Mapping[str, Any]) -> None:
    """Raise ValueError on one rank, naming host and fact, if the ranks don't hold equal facts (name -> value).

    For the version of the code, the data and the settings, of which two nodes may hold different copies.
    """
    if world.size == 1:
        return
    local_facts = {name: str(value) for name, value in facts.items()}
    facts_by_rank = _gathered((world.host, local_facts), None)

    def compare() -> None:
        _, reference = facts_by_rank[0]
        for rank, (host, values) in enumerate(facts_by_rank):
            for name in (*reference, *(name for name in values if name not in reference)):
                if values.get(name) != reference.get(name):
                    raise Agreed(
                        f"{name}: rank {rank} on {host} has {values.get(name)}, and rank 0 on {facts_by_rank[0][0]} "
                        f"has {reference.get(name)}; give all nodes the same"
                    )

    if world.first:
        compare()
    elif any(values != facts_by_rank[0][1] for _, values in facts_by_rank):
        raise OtherRankFailed


@contextmanager
def first_here(world: World, group: distributed.ProcessGroup | None) -> Iterator[None]:
    """Run the block on the first rank of each host, then on the others, which find what the first one cached."""
    if world.size == 1:
        yield
        return
    if world.local_rank == 0:
        try:
            yield
        finally:
            distributed.barrier(group)
    else:
        distributed.barrier(group)
        yield


def _gathered(value: Any, group: distributed.ProcessGroup | None) -> list[Any]:
    values: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(values, value, group=group)
    return values
