"""One of two ranks that agree, or do not, and what each was told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import distributed

from hasten.distribute.consensus import broadcast_from_rank0, local_rank0_first, require_same, run_on_all_ranks
from hasten.distribute.group import long_timeout_group
from hasten.distribute.world import World


def findings(world: World, folder: Path) -> dict[str, Any]:
    """On one of the ranks of a joined world; folder: empty, and the same on all."""
    other = World(rank=world.rank, size=world.size, local_rank=world.local_rank, host=f"node{world.rank}")
    with long_timeout_group() as patient:
        assert patient is not None
        results: dict[str, Any] = {
            "values": run_on_all_ranks(world, lambda: world.rank, group=patient),
            "one fails": refusal(
                lambda: run_on_all_ranks(other, lambda: fails(world.rank == 1, "second"), group=patient)
            ),
            "all fail": refusal(lambda: run_on_all_ranks(other, lambda: fails(True, f"of rank {world.rank}"))),
            "from first": broadcast_from_rank0(world, {"a": 1} if world.first else None, group=patient),
            "same": refusal(lambda: require_same(other, {"code": "abc", "data": 3})),
            "differing": refusal(lambda: require_same(other, {"code": "abc", "data hash": world.rank + 7})),
            "extra": refusal(lambda: require_same(other, {"code": "abc"} | ({} if world.first else {"more": 1}))),
        }
    made = folder / "made"
    with local_rank0_first(world, None):
        results["was there"] = made.exists()
        made.touch()
    distributed.barrier()
    failed = refusal(lambda: cached(world, folder / "not made"))
    results["first fails"] = [failed, (folder / "not made").exists()]
    distributed.barrier()
    return results


def cached(world: World, path: Path) -> None:
    with local_rank0_first(world, None):
        fails(world.first, "no room")
        path.touch()


def fails(wrong: bool, what: str) -> None:
    if wrong:
        raise ValueError(what)


def refusal(work: Callable[[], Any]) -> str:
    try:
        work()
    except (ValueError, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return ""
