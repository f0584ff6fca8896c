"""One of some ranks, each with a cache of its own, whose cases travel: what it held and which batches it made."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from hasten.cache.arena import Arena
from hasten.cache.own import point_slices, rows_of, values_of
from hasten.config.schema import CacheConfig, DistributeConfig
from hasten.distribute.exchange import exchange, told_rows
from hasten.distribute.group import joined
from hasten.distribute.world import World, detect_world
from hasten.sample.share import Share
from tests.cache.test_own import arena_of
from tests.distribute.dealt_runs import case_set, digests, run, sent_home
from tests.distribute.ranks import tell


def held(arena: Arena) -> dict[str, str]:
    """A hash of all bytes of each case."""
    found = {}
    points = point_slices(rows_of(arena))
    for case, name in enumerate(arena.ids):
        bits = b"".join(value.numpy().tobytes() for value in values_of(arena, case, points[case]))
        found[name] = hashlib.sha256(bits + repr(arena.geometry[case]).encode()).hexdigest()
    return found


def directly(world: World, limit: int) -> dict[str, Any]:
    """Five cases from their first owners to others and back, in small waves, in a group of the ranks."""
    from hasten.cache.own import own_cases

    names = "abcde"
    now = [[name for number, name in enumerate(names) if number % world.size == rank] for rank in range(world.size)]
    then = [list(reversed(now[rank - 1])) for rank in range(world.size)]
    whole = arena_of()
    arena = own_cases(whole, whole.index(tuple(now[world.rank])), "cpu")
    rows = told_rows(arena)
    moved = exchange(arena, rows, now, then, limit=limit)
    group = distributed.new_group(list(range(world.size)), backend="gloo")
    back = exchange(moved, rows, then, now, limit=limit, group=group)
    same = held(back) == held(arena) and back.ids == arena.ids
    return {"ids": list(moved.ids), "held": held(moved), "rows": sorted(rows), "back": same}


def stream(world: World, folder: Path, every: int, pieces: int, first: int, staged: bool) -> dict[str, Any]:
    share = Share(world.rank, world.size, pieces)
    home = sent_home(case_set(folder / f"data{world.rank}"), cache(folder, world), every, share, limit=3000)
    rounds: list[dict[str, str]] = []
    real = home.arena

    def watched(number: int) -> Arena:
        arena = real(number)
        rounds.append(held(arena))
        return arena

    home.arena = watched  # type: ignore[assignment, method-assign]
    found = [digests(batch, pieces) for batch in run(home, every, share, first=first, staged=staged)]
    return {"batches": found, "rounds": rounds}


def cache(folder: Path, world: World) -> CacheConfig:
    return CacheConfig(dir=str(folder / f"cache{world.rank}"), max_points=20)


def main() -> None:
    folder, world = Path(sys.argv[1]), detect_world()
    with joined(world, DistributeConfig(timeout_s=60), torch.device("cpu")):
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
