"""Distribution of the training cases over virtual parts, so that each rank keeps only its own cases in memory.

The samples of a run follow from the number of parts and the seed. Ranks own whole parts, so that any number of ranks
that divides the parts sees the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cache.memory import available_memory
from hasten.cases.types import CaseSet
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import CacheConfig, PrepareConfig, Spacing
from hasten.distribute.balance import Parts, deal, imbalance, in_order, loads_of
from hasten.sample.dealt import Dealt
from hasten.sample.random import random_words, sample_key
from hasten.sample.share import Share, share_mistake

_DEAL_STREAM = 0xDEA1


@dataclass(frozen=True, kw_only=True, slots=True)
class Deal:
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

    def positions(self, round: int) -> Parts:
        """Of each part in a round, positions in `ids`. The parts' costs are near equal, their counts within one."""
        costs = [float(self.costs[name]) for name in self.ids]
        return deal(costs, self.parts, self._order(round) if round else None)

    def at(self, round: int) -> tuple[tuple[str, ...], ...]:
        """Of each part in a round, the ids of its cases."""
        ids = self.ids
        return tuple(tuple(ids[case] for case in part) for part in self.positions(round))

    def begun(self, round: int) -> int:
        """Number of samples that each part gave before a round."""
        return round * self.round_samples // self.parts

    def _order(self, round: int) -> list[int]:
        key = sample_key(torch.tensor(self.seed), torch.tensor([round]))
        return torch.argsort(random_words(key, _DEAL_STREAM, len(self.costs)), dim=1, stable=True)[0].tolist()


def parts_mistake(cases: int, parts: int, batch_size: int, accumulate: int, size: int) -> str | None:
    """Why `cases` training cases can't be dealt into so many parts and these shared by `size` ranks, with a remedy."""
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
        sides = (side * by / (to or by) for side, by, to in zip(shape, original, target, strict=True))
        depth, height, width = sides
        voxels[name] = depth * height * width
    return voxels


class Home(Protocol):
    """Where a rank keeps the cases of its parts."""

    def arena(self, round: int) -> Arena:
        """The arena that a round's batches are made from; it holds this rank's cases. What it replaces is dropped."""
        ...


class FileHome:
    """Cases come out of the cache entry of the whole data set, which every node has or can reach."""

    def __init__(
        self,
        deal: Deal,
        share: Share,
        case_set: CaseSet,
        prepare: PrepareConfig,
        cache: CacheConfig,
        device: str,
        *,
        neighbours: int = 1,
    ) -> None:
        """neighbours: ranks on this host, each of which uses its share of the available memory."""
        if cache.home == "auto" and cache.ram == "auto" and neighbours > 1:
            cache = replace(cache, ram=f"{available_memory() // (2 * neighbours)}B")
        self.deal, self.share = deal, share
        self.case_set, self.prepare, self.cache, self.device = case_set, prepare, cache, device

    def arena(self, round: int) -> Arena:
        ids = own_ids(self.deal, round, self.share)
        return get_arena(self.case_set, self.prepare, self.cache, device=self.device, first=ids, only=True)


def own_ids(deal: Deal, round: int, share: Share) -> tuple[str, ...]:
    """Ids of the cases of a rank's parts, part after part."""
    parts = deal.at(round)
    return tuple(name for number in share.parts(deal.parts) for name in parts[number])


class CaseParts:
    """The cases of this rank's parts, round after round."""

    def __init__(self, deal: Deal, share: Share, home: Home) -> None:
        """share: the rank's of every batch; one that makes whole batches has all parts."""
        self.deal, self.share, self._home = deal, share, home
        self._arena: Arena | None = None
        self._round = -1

    def arena(self, round: int) -> Arena:
        """This rank's cases in a round. All ranks call it at once where cases travel between them."""
        if self._arena is None or round != self._round:
            self._arena = None
            self._arena, self._round = self._home.arena(round), round
        return self._arena

    def dealt(self, round: int) -> Dealt:
        """The cases that a round samples from, as positions in `arena(round)`; other ranks' parts are empty."""
        arena, parts = self.arena(round), self.deal.at(round)
        local_parts = self.share.parts(len(parts))
        return Dealt(
            parts=tuple(arena.index(part) if number in local_parts else () for number, part in enumerate(parts)),
            round=round,
            begun=self.deal.begun(round),
        )


def part_table(deal: Deal, world_size: int, round: int = 0) -> str:
    """A table of the parts in a round, and the imbalance that cutting the list of cases would have given."""
    costs = [float(deal.costs[name]) for name in deal.ids]
    parts = deal.positions(round)
    loads = loads_of(costs, parts)
    total = sum(loads) or 1.0
    rows = [("part", "rank", "cases", "voxels", "share")]
    for number, (part, load) in enumerate(zip(parts, loads, strict=True)):
        rank = number * world_size // deal.parts
        rows.append((str(number), str(rank), str(len(part)), f"{load:.4g}", f"{100 * load / total:.1f} %"))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(value.rjust(width) for value, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([*lines, part_balance(deal, round)])


def part_balance(deal: Deal, round: int = 0) -> str:
    """The imbalance of a round's parts, and the one that cutting the list of cases would have given."""
    costs = [float(deal.costs[name]) for name in deal.ids]
    listed = [float(cost) for cost in deal.costs.values()]
    after = imbalance(loads_of(costs, deal.positions(round)))
    before = imbalance(loads_of(listed, in_order(len(listed), deal.parts)))
    return f"largest over mean: {after:.3f} ({100 / after:.1f} % balanced); cut by count in order: {before:.3f}"
