"""Distribution of the training cases over virtual parts, so that each rank keeps only its own cases in memory.

The samples of a run follow from the number of parts and the seed. Ranks own whole parts, so that any number of ranks
that divides the parts sees the same samples.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

import torch

from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cases.types import CaseSet
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import CacheConfig, Spacing
from hasten.config.settled import PlannedRun
from hasten.observe.cores import available_memory
from hasten.sample.order import Dealt
from hasten.sample.random import random_words, sample_key
from hasten.sample.share import Share, share_mistake

Parts = tuple[tuple[int, ...], ...]
"""Positions of each part's cases, rising."""

_SWAPS = 1000
_DEAL_STREAM = 0xDEA1


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseAssignment:
    """The assignment of training cases to parts, in every round: a function of these fields alone."""

    costs: Mapping[str, float]
    """Cost of each training case by its id: voxels, or another measure in which parts are to be equal."""
    parts: int
    seed: int
    every: int = 0
    """Epochs of a round, after which the cases are reassigned; 0: one round is the whole run."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Sorted, so that the order of the list of cases does not matter."""
        return tuple(sorted(self.costs))

    @property
    def round_samples(self) -> int:
        """Samples of a round, all parts together; 0 where there is only one round."""
        return self.every * len(self.costs)

    def at(self, round: int) -> tuple[tuple[str, ...], ...]:
        """The ids of each part's cases in a round. Parts have nearly equal costs, and counts within one."""
        ids, order = self.ids, None
        if round:
            key = sample_key(torch.tensor(self.seed), torch.tensor([round]))
            order = torch.argsort(random_words(key, _DEAL_STREAM, len(ids)), dim=1, stable=True)[0].tolist()
        return tuple(
            tuple(ids[case] for case in part) for part in deal([self.costs[name] for name in ids], self.parts, order)
        )

    def of_rank(self, round: int, share: Share) -> tuple[str, ...]:
        """Ids of the cases of a rank's parts, part after part."""
        parts = self.at(round)
        return tuple(name for number in share.parts(self.parts) for name in parts[number])

    def begun(self, round: int) -> int:
        """Number of samples that each part gave before a round."""
        return round * self.round_samples // self.parts


def parts_mistake(cases: int, parts: int, batch_size: int, accumulate: int, size: int) -> str | None:
    """Why `cases` training cases can't be dealt into `parts` parts shared by `size` ranks, with a remedy."""
    if parts > cases:
        return f"distribute.parts: {parts} parts, but only {cases} cases to train on; use {cases} or fewer"
    return share_mistake(batch_size, accumulate, size, parts)


def prepared_voxels(fingerprint: Fingerprint, ids: Sequence[str], spacing: Spacing | None) -> dict[str, float]:
    """Approximate voxels of each case after preprocessing, by id. ids: in the order of the fingerprint's cases.

    spacing: `prepare.spacing`; where it is None or 0, a case's original spacing. Nothing is preprocessed for it.
    """
    voxels = {}
    for name, shape, original in zip(ids, fingerprint.shapes, fingerprint.spacings, strict=True):
        target = spacing or original
        depth, height, width = (side * by / (to or by) for side, by, to in zip(shape, original, target, strict=True))
        voxels[name] = depth * height * width
    return voxels


class RankCases:
    """The training cases of this rank's parts, round after round."""

    def __init__(self, assignment: CaseAssignment, share: Share, read: Callable[[Sequence[str]], Arena]) -> None:
        """share: the rank's of every batch; one of whole batches has all parts. read: gives the arena of some cases."""
        self.assignment, self.share, self._read = assignment, share, read
        self._arena: Arena | None = None
        self._round = -1

    def arena(self, round: int) -> Arena:
        """This rank's cases in a round."""
        if self._arena is None or round != self._round:
            self._arena = None  # what is replaced is dropped first
            self._arena = self._read(self.assignment.of_rank(round, self.share))
        self._round = round
        return self._arena

    def dealt(self, round: int) -> Dealt:
        """The cases that a round samples from, as positions in `arena(round)`; other ranks' parts are empty."""
        arena, parts = self.arena(round), self.assignment.at(round)
        local_parts = self.share.parts(len(parts))
        return Dealt(
            parts=tuple(arena.index(part) if number in local_parts else () for number, part in enumerate(parts)),
            round=round,
            begun=self.assignment.begun(round),
        )


def rank_cases(
    config: PlannedRun,
    case_set: CaseSet,
    train: Sequence[str],
    fingerprint: Fingerprint,
    share: Share,
    device: torch.device,
    *,
    local_size: int = 1,
) -> RankCases:
    """The training cases of a rank, in a run that has `distribute.parts`. train: ids of the training cases.

    fingerprint: of `case_set`. local_size: ranks on this host, whose cache holds all cases. Raises ValueError for
    cases or a batch that can't be dealt so.
    """
    settings, batch = config.distribute, config.sample.batch_size
    mistake = parts_mistake(len(train), settings.parts, batch, share.pieces, share.size)
    if mistake:
        raise ValueError(mistake)
    voxels = prepared_voxels(fingerprint, [case.id for case in case_set.cases], config.prepare.spacing)
    assignment = CaseAssignment(
        costs={name: voxels[name] for name in train},
        parts=settings.parts,
        seed=config.train.seed,
        every=settings.exchange_every,
    )
    # From the cache entry of the whole data set, which every node has or can reach.
    cache = cache_of_rank(config.cache, local_size)

    def read(ids: Sequence[str]) -> Arena:
        return get_arena(case_set, config.prepare, cache, device=str(device), own=ids)

    return RankCases(assignment, share, read)


def cache_of_rank(cache: CacheConfig, local_size: int) -> CacheConfig:
    """The settings of one of `local_size` ranks on a host, each of which uses its share of the available memory."""
    if cache.home == "auto" and cache.ram == "auto" and local_size > 1:
        return replace(cache, ram=f"{available_memory() // (2 * local_size)}B")
    return cache


def part_balance(assignment: CaseAssignment) -> str:
    """The balance of the first round's parts: the load of the largest over the mean."""
    loads = [sum(assignment.costs[name] for name in part) for part in assignment.at(0)]
    largest = max(loads) * len(loads) / sum(loads)
    return (
        f"{len(assignment.costs)} cases in {len(loads)} parts: the largest has {largest:.3f} times the mean "
        f"({100 / largest:.1f} % balanced)"
    )


def partition(costs: Sequence[float], parts: int) -> Parts:
    """Assign cases, costliest first, each to the part with the smallest load so far (longest processing time first).

    The largest load is at most 4/3 - 1/(3 parts) times the smallest that is possible (Graham 1969). Ties go to the
    lower position and the lower part. With fewer cases than parts some are empty.
    """
    assert parts >= 1
    return _sorted(_fill(costs, parts, _costliest(costs), row=1)[0])


def deal(costs: Sequence[float], parts: int, order: Sequence[int] | None = None) -> Parts:
    """`partition` with part sizes that differ by one case at most, so that all cases are drawn equally often.

    Cases are assigned in rows of one case per part, the costliest of a row to the part with the smallest load so far.
    Then pairs of cases are swapped while that reduces the gap between the heaviest and the lightest part. order: the
    positions in the order in which rows are formed; None is the costliest first.
    """
    members, loads = _fill(costs, parts, _costliest(costs) if order is None else order, row=parts)
    _swap(costs, members, loads)
    return _sorted(members)


def _fill(costs: Sequence[float], parts: int, order: Sequence[int], *, row: int) -> tuple[list[list[int]], list[float]]:
    """Members and load of each part. `row` cases at a time, the costliest to the part with the smallest load so far."""
    members: list[list[int]] = [[] for _ in range(parts)]
    loads = [0.0] * parts
    for first in range(0, len(order), row):
        cases = sorted(order[first : first + row], key=lambda case: -costs[case])
        lightest = nsmallest(len(cases), range(parts), key=loads.__getitem__)
        for case, part in zip(cases, lightest, strict=True):
            members[part].append(case)
            loads[part] += costs[case]
    return members, loads


def _sorted(members: list[list[int]]) -> Parts:
    return tuple(tuple(sorted(each)) for each in members)


def _costliest(costs: Sequence[float]) -> list[int]:
    return sorted(range(len(costs)), key=lambda case: -costs[case])


def _swap(costs: Sequence[float], parts: list[list[int]], loads: list[float]) -> None:
    """Swap pairs of cases in place. Moving half the gap would equalise two parts; the nearest swap is chosen."""
    for _ in range(_SWAPS):
        heavy, light = loads.index(max(loads)), loads.index(min(loads))
        gap = loads[heavy] - loads[light]
        if gap <= 1e-3 * max(loads):
            return
        ranked = sorted((costs[case], case) for case in parts[light])
        pairs = []
        for one in parts[heavy]:
            at = bisect_left(ranked, (costs[one] - gap / 2, -1))
            pairs += [(costs[one] - cost, one, other) for cost, other in ranked[max(0, at - 1) : at + 1]]
        better = [pair for pair in pairs if 0.001 * gap < pair[0] < 0.999 * gap]
        if not better:
            return
        moved, one, other = min(better, key=lambda pair: (abs(pair[0] - gap / 2), pair))
        parts[heavy][parts[heavy].index(one)], parts[light][parts[light].index(other)] = other, one
        loads[heavy] -= moved
        loads[light] += moved
