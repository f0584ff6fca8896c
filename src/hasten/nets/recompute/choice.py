"""Chooses the modules to recompute so that a step fits a memory budget."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hasten.nets.recompute.profile import Block, ModuleCall, Profile

_SHARE = 1e-3
"""A block that saves less than this share of all activations is ignored."""
_SIZES = 8
"""Sizes of blocks that are tried: at most all activations, a half of them, a quarter, ..."""


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
    """The blocks to recompute so that a step's activations fit `budget` bytes, and the memory used.

    At each of some sizes of blocks, those that save the most bytes per second, or the most bytes, are added until the
    step fits, and those left out again that it fits without. Of these choices the one that takes the least time wins;
    if none fits, the one with the smallest peak.
    """
    nothing = occupied(profile, ())
    if nothing.peak <= budget:
        return (), nothing
    saved = _bytes_by_block(profile)
    options: list[list[Block]] = [[]]
    for halvings in range(_SIZES):
        blocks = [block for block in saved if saved[block] <= nothing.kept / 2**halvings]
        options.append(
            _first_that_fit(profile, budget, sorted(blocks, key=lambda each: -saved[each] / max(each.seconds, 1e-9)))
        )
        options.append(_first_that_fit(profile, budget, sorted(blocks, key=lambda each: -saved[each])))

    def price(blocks: list[Block]) -> tuple[float, float]:
        return max(budget, occupied(profile, blocks).peak), sum(block.seconds for block in blocks)

    best = sorted(min(options, key=price), key=lambda block: block.call)
    return tuple(best), occupied(profile, best)


def _first_that_fit(profile: Profile, budget: int, blocks: list[Block]) -> list[Block]:
    """Blocks that lower the peak, in their order, until the step fits, without those that it fits without.

    One takes the place of those that lie in it or around it.
    """
    chosen: list[Block] = []
    held = occupied(profile, ())
    for block in blocks:
        others = [*(each for each in chosen if _apart(block.call, each.call)), block]
        then = occupied(profile, others)
        if (then.peak, then.kept) < (held.peak, held.kept):
            chosen, held = others, then
        if held.peak <= budget:
            break
    least = max(budget, held.peak)
    for block in sorted(chosen, key=lambda block: -block.seconds):
        others = [each for each in chosen if each is not block]
        chosen = others if occupied(profile, others).peak <= least else chosen
    return chosen


def _apart(one: ModuleCall, other: ModuleCall) -> bool:
    return one.end <= other.begin or other.end <= one.begin


def _bytes_by_block(profile: Profile) -> dict[Block, int]:
    """Bytes that a block saves besides its inputs, of the blocks that save more than a little."""
    total = sum(profile.sizes[storage] for storage in set(profile.saves))
    blocks: dict[ModuleCall, Block] = {}
    for block in profile.blocks:
        # A wrapper and the module that it wraps are one choice.
        if block.call not in blocks or block.seconds < blocks[block.call].seconds:
            blocks[block.call] = block
    saved = {}
    for call, block in blocks.items():
        within = set(profile.saves[call.begin : call.end]) - set(call.inputs)
        saved[block] = sum(profile.sizes[storage] for storage in within)
    return {block: size for block, size in saved.items() if size > _SHARE * total}
