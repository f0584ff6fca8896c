"""Chooses the modules to recompute so that a step fits a memory budget at the least time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hasten.nets.recompute.profile import Block, ModuleCall, Profile

_SHARE = 1e-3
"""A block that frees less than this share of all activations is ignored."""
_WIDTH = 64
"""Number of partial solutions (ways) kept at a place; of more, this many spread evenly from fast to small."""


class Occupied(NamedTuple):
    """Bytes of activations."""

    kept: int
    """Bytes kept between the forward and the backward pass."""
    peak: int
    """Peak: the bytes kept by then plus those of a recomputed block during its backward pass."""


def occupied(profile: Profile, blocks: Iterable[Block]) -> Occupied:
    """Activation memory of a step that recomputes these blocks, none within another.

    A backward pass goes through the saves from last to first and frees them, so that during a block only the saves
    before its end are alive. A block keeps its inputs, and its recomputation saves what is not alive already.
    """
    alive: set[int] = set()
    kept_bytes = peak = place = 0

    def keep(storages: Iterable[int]) -> int:
        new = set(storages) - alive
        alive.update(new)
        return sum(profile.sizes[storage] for storage in new)

    for call in sorted(block.call for block in blocks):
        kept_bytes += keep(profile.saves[place : call.begin]) + keep(call.inputs)
        inner = set(profile.saves[call.begin : call.end]) - alive
        peak = max(peak, kept_bytes + sum(profile.sizes[storage] for storage in inner))
        place = call.end
    kept_bytes += keep(profile.saves[place:])
    return Occupied(kept_bytes, max(peak, kept_bytes))


def choose(profile: Profile, budget: int) -> tuple[tuple[Block, ...], Occupied]:
    """The blocks to recompute so that a step's activations fit `budget` bytes at the least time, and the memory used.

    If no choice fits, the one with the smallest peak. A choice is a way along the sequence of saves: each is kept, or
    skipped with a block that begins there. Dynamic programming keeps the ways to a place that no other beats in bytes
    and seconds; for networks of up to some tens of blocks the answer is optimal.
    """
    nothing = occupied(profile, ())
    if nothing.peak <= budget:
        return (), nothing
    search = _search(profile)
    way = _cheapest(search, budget, peaks=False)
    if way is None:
        smallest = _cheapest(search, nothing.peak, peaks=True)
        assert smallest is not None
        way = _cheapest(search, int(smallest.cost), peaks=False) or smallest
    blocks = tuple(way.blocks())
    return blocks, occupied(profile, blocks)


@dataclass(frozen=True, slots=True)
class _Search:
    profile: Profile
    places: list[int]
    """Positions where a block begins or ends, and both ends of the sequence of saves."""
    starting: dict[int, list[Block]]
    later: dict[int, int]
    """Storages that are saved or used as inputs from a place on, as a bit mask, by that place."""


class _Way(NamedTuple):
    """A partial solution: from the first save to a place."""

    cost: float
    """Seconds, or peak bytes."""
    kept: int
    seen: int
    """The storages that are kept, as a bit mask."""
    last: Block | None
    before: _Way | None

    def blocks(self) -> Iterator[Block]:
        if self.before is not None:
            yield from self.before.blocks()
        if self.last is not None:
            yield self.last


def _search(profile: Profile) -> _Search:
    total = sum(profile.sizes[storage] for storage in set(profile.saves))
    blocks: dict[ModuleCall, Block] = {}
    for block in profile.blocks:
        call = block.call
        within = set(profile.saves[call.begin : call.end]) - set(call.inputs)
        # A wrapper and the module that it wraps are one choice.
        faster = call not in blocks or block.seconds < blocks[call].seconds
        if faster and sum(profile.sizes[storage] for storage in within) > _SHARE * total:
            blocks[call] = block
    starting: dict[int, list[Block]] = {}
    for call, block in blocks.items():
        starting.setdefault(call.begin, []).append(block)
    ends = {call.end for call in blocks}
    places = sorted({0, len(profile.saves), *starting, *ends})
    later = {places[-1]: 0}
    for here, after in reversed(list(pairwise(places))):
        inputs = [storage for block in starting.get(here, []) for storage in block.call.inputs]
        later[here] = later[after] | _bits(profile.saves[here:after]) | _bits(inputs)
    return _Search(profile, places, starting, later)


def _cheapest(search: _Search, budget: int, *, peaks: bool) -> _Way | None:
    """The cheapest way to the end that fits; cost is seconds, or peak bytes with `peaks`."""
    ways: dict[int, list[_Way]] = {place: [] for place in search.places}
    ways[0].append(_Way(0.0, 0, 0, None, None))
    for here, after in pairwise(search.places):
        for way in _front(ways.pop(here), search.later[here], search.profile.sizes):
            kept, seen = _added(way, search.profile.saves[here:after], search.profile.sizes)
            if kept <= budget:
                ways[after].append(_Way(max(way.cost, kept) if peaks else way.cost, kept, seen, None, way))
            for block in search.starting.get(here, []):
                call = block.call
                kept, seen = _added(way, call.inputs, search.profile.sizes)
                saves = search.profile.saves[call.begin : call.end]
                most, _ = _added(_Way(way.cost, kept, seen, None, None), saves, search.profile.sizes)
                if most <= budget:
                    cost = max(way.cost, most) if peaks else way.cost + block.seconds
                    ways[call.end].append(_Way(cost, kept, seen, block, way))
    return min(ways[search.places[-1]], key=lambda way: (way.cost, way.kept), default=None)


def _added(way: _Way, storages: Iterable[int], sizes: tuple[int, ...]) -> tuple[int, int]:
    """Bytes and storages kept after these storages are added."""
    kept, seen = way.kept, way.seen
    for storage in storages:
        bit = 1 << storage
        if not seen & bit:
            seen |= bit
            kept += sizes[storage]
    return kept, seen


def _front(ways: list[_Way], later: int, sizes: tuple[int, ...]) -> list[_Way]:
    front: list[_Way] = []
    for way in sorted(ways, key=lambda way: (way.cost, way.kept)):
        if not any(_beats(other, way, later, sizes) for other in front):
            front.append(way)
    if len(front) <= _WIDTH:
        return front
    return [front[round(place * (len(front) - 1) / (_WIDTH - 1))] for place in range(_WIDTH)]


def _beats(one: _Way, other: _Way, later: int, sizes: tuple[int, ...]) -> bool:
    """Whether a way that costs no more needs no more memory either, even after it keeps all that the other keeps."""
    more = one.kept
    if more > other.kept:
        return False
    lacking = other.seen & ~one.seen & later
    while lacking:
        lowest = lacking & -lacking
        more += sizes[lowest.bit_length() - 1]
        lacking ^= lowest
    return more <= other.kept


def _bits(storages: Iterable[int]) -> int:
    bits = 0
    for storage in storages:
        bits |= 1 << storage
    return bits
