"""One of some ranks, each with a cache of its own, whose cases travel: what it held and which batches it made."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch

from hasten.cache.arena import Arena
from hasten.cache.arena_in_memory import case_rows, case_values, copy_cases, point_slices
from hasten.config.schema import CacheConfig, DistributeConfig
from hasten.distribute.case_exchange import exchange, gather_case_rows
from hasten.distribute.group import process_group
from hasten.distribute.world import World, detect_world
from hasten.sample.share import Share
from tests.cache.test_arena_in_memory import arena_of
from tests.distribute.dealt_runs import case_set, digests, run, sent
from tests.distribute.ranks import tell


def held(arena: Arena) -> dict[str, str]:
    """A hash of all bytes of each case."""
    results = {}
    points = point_slices(case_rows(arena))
    for case, name in enumerate(arena.ids):
        bits = b"".join(value.numpy().tobytes() for value in case_values(arena, case, points[case]))
        results[name] = hashlib.sha256(bits + repr(arena.geometry[case]).encode()).hexdigest()
    return results


def directly(world: World, limit: int) -> dict[str, Any]:
    """Five cases from their first owners to others and back, in small waves."""
    names = "abcde"
    now = [[name for number, name in enumerate(names) if number % world.size == rank] for rank in range(world.size)]
    then = [list(reversed(now[rank - 1])) for rank in range(world.size)]
    whole = arena_of()
    arena = copy_cases(whole, whole.index(tuple(now[world.rank])), "cpu")
    rows = gather_case_rows(arena)
    moved = exchange(arena, rows, now, then, limit=limit)
    back = exchange(moved, rows, then, now, limit=limit)
    same = held(back) == held(arena) and back.ids == arena.ids
    return {"ids": list(moved.ids), "held": held(moved), "rows": sorted(rows), "back": same}


def stream(world: World, folder: Path, every: int, pieces: int, first: int, staged: bool) -> dict[str, Any]:
    share = Share(world.rank, world.size, pieces)
    parts = sent(case_set(folder / f"data{world.rank}"), cache(folder, world), every, share, limit=3000)
    rounds: list[dict[str, str]] = []
    numbers: list[int] = []
    real = parts.arena

    def watched(number: int) -> Arena:
        arena = real(number)
        if not rounds or number != numbers[-1]:
            rounds.append(held(arena))
        numbers.append(number)
        return arena

    parts.arena = watched  # type: ignore[assignment, method-assign]
    results = [digests(batch, pieces) for batch in run(parts, first=first, staged=staged)]
    return {"batches": results, "rounds": rounds}


def cache(folder: Path, world: World) -> CacheConfig:
    return CacheConfig(dir=str(folder / f"cache{world.rank}"), max_points=20)


def main() -> None:
    folder, world = Path(sys.argv[1]), detect_world()
    with process_group(world, DistributeConfig(timeout_s=60), torch.device("cpu")):
        tell(
            {
                "direct": [directly(world, limit) for limit in (1, 4000, 2**30)],
                "plain": stream(world, folder, 2, 1, 0, False),
                "resumed": stream(world, folder, 2, 1, 11, False),
                "staged": stream(world, folder, 3, 1, 0, True),
            }
        )


if __name__ == "__main__":
    main()
