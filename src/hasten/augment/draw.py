"""Draws all random numbers of a batch at once, for both renderers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from hasten.augment.chain import ChainOp, KeyRead, Stage, Warp, groups_of
from hasten.augment.maps import Map, compose, identity, where
from hasten.augment.op import Drawn, ValueOp, chances, op_keys
from hasten.config.schema import Triple

Maps = dict[str, Map]
"""Map with which a Warp reads each key."""


class Draws(NamedTuple):
    """The random numbers of B samples."""

    sample: Tensor
    """(B,) int64 number in the stream of samples."""
    case: Tensor
    """(B,) int64 position among the cases."""
    start: Tensor
    """(B, 3) int64 first voxel of the patch in its case."""
    key: Tensor
    """(B, 2) int64 words that key all other draws."""
    stages: tuple[Any, ...]
    """One entry per stage: `Maps` of a Warp, or `Drawn` numbers of an operation, with `use` (B,) bool."""


def draw_stages(
    stages: Sequence[Stage], key: Tensor, channels: Mapping[str, int], spatial_dims: int
) -> tuple[Maps | Drawn, ...]:
    """key: (B, 2) words of the samples; channels: of each key of the batch."""
    draws: list[Maps | Drawn] = []
    size: Triple = (1, 1, 1)
    words = _words(stages, key)
    for stage in stages:
        if isinstance(stage, Warp):
            maps: Maps = {}
            for keys in groups_of(stage):
                maps |= dict.fromkeys(keys, _composed_map(stage.readings[keys[0]], words, stage.size, spatial_dims))
            draws.append({key: maps[key] for key in stage.readings})
            size = stage.out
        else:
            draws.append(_numbers(stage, words, size[3 - spatial_dims :], channels))
    return tuple(draws)


_Words = tuple[Tensor, Tensor]
"""Random words of all operations, (P, B, 2) and (P, B) by position in the chain: an operation is used where the second
lies below its probability. One call draws them all: separate draws cost a GPU one kernel each, or up to 40."""


def _words(stages: Sequence[Stage], key: Tensor) -> _Words:
    warps = [stage for stage in stages if isinstance(stage, Warp)]
    placed = [each for warp in warps for reading in warp.readings.values() for each in reading.ops]
    placed += [stage for stage in stages if isinstance(stage, ChainOp)]
    keys = op_keys(key, 0, max([0, *(each.position + 1 for each in placed)]))
    return keys, chances(keys)


def _composed_map(reading: KeyRead, words: _Words, size: Triple, spatial_dims: int) -> Map:
    keys, chance = words
    nothing = identity(keys.shape[1], keys.device)
    merged: Map | None = None
    for placed in reading.ops:
        key, op = keys[placed.position], placed.op
        one = op.map(op.draw(key, size, spatial_dims), size, spatial_dims)
        if op.prob < 1:
            one = where(chance[placed.position] < op.prob, one, nothing)
        merged = one if merged is None else compose(merged, one)
        size = op.out_size(size)
    return merged or nothing


def _numbers(placed: ChainOp, words: _Words, space: tuple[int, ...], channels: Mapping[str, int]) -> Drawn:
    op, key, chance = placed.op, *(each[placed.position] for each in words)
    if isinstance(op, ValueOp):
        return {**op.draw(key, (channels[op.keys[0]], *space)), "use": chance < op.prob}
    return {}


def part(draws: Draws, first: int, count: int) -> Draws:
    """The draws of `count` samples from the `first` one on, as new tensors."""
    return pytree.tree_map(lambda value: value[first : first + count].clone(), draws)
