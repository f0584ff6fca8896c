"""All numbers of a batch, drawn at once: what the two renderers work from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from hasten.augment.chain import BatchOp, Placed, Reading, Stage, Warp
from hasten.augment.maps import Map, compose, identity, where
from hasten.augment.op import Drawn, ValueOp, op_key, spread, used
from hasten.config.schema import Triple


class Bent(NamedTuple):
    """Where a Warp reads each key."""

    maps: dict[str, Map]
    numbers: dict[str, Drawn]
    """Of the displacement, for keys that have one; all 0 for a sample that is not displaced."""
    uses: dict[str, Tensor]
    """(B,) bool: which samples are displaced."""


class Draws(NamedTuple):
    """Of B samples."""

    sample: Tensor
    """(B,) int64 number in the stream of samples."""
    case: Tensor
    """(B,) int64 position among the cases."""
    start: Tensor
    """(B, 3) int64 first voxel of the patch in its case."""
    key: Tensor
    """(B, 2) int64 words that all else is keyed by."""
    stages: tuple[Bent | Drawn, ...]
    """Of each stage: where a Warp reads; the numbers of an operation, with `use` (B,) bool."""


def draw_stages(
    stages: Sequence[Stage], key: Tensor, channels: Mapping[str, int], spatial_dims: int
) -> tuple[Bent | Drawn, ...]:
    """key: (B, 2) words of the samples; channels: of each key of the batch."""
    found: list[Bent | Drawn] = []
    size: Triple = (1, 1, 1)
    for stage in stages:
        if isinstance(stage, Warp):
            found.append(_bent(stage, key, spatial_dims))
            size = stage.out
        else:
            found.append(_numbers(stage, key, size, channels, spatial_dims))
    return tuple(found)


def _bent(warp: Warp, key: Tensor, spatial_dims: int) -> Bent:
    made: dict[tuple[int, ...], Map] = {}
    found = Bent({}, {}, {})
    for name, reading in warp.readings.items():
        positions = tuple(each.position for each in reading.ops)
        if positions not in made:
            made[positions] = _merged(reading, key, warp.size, spatial_dims)
        found.maps[name] = made[positions]
        if reading.bends is not None:
            own, op = op_key(key, positions[-1]), reading.bends
            use = used(own, op.prob)
            drawn = op.draw(own, warp.out, spatial_dims)
            found.uses[name] = use
            found.numbers[name] = {each: spread(use, value) * value for each, value in drawn.items()}
    return found


def _merged(reading: Reading, key: Tensor, size: Triple, spatial_dims: int) -> Map:
    merged = identity(key.shape[0], key.device)
    for placed in reading.ops:
        own = op_key(key, placed.position)
        one = placed.op.map(placed.op.draw(own, size, spatial_dims), size, spatial_dims)
        if placed.op.prob < 1:
            one = where(used(own, placed.op.prob), one, identity(key.shape[0], key.device))
        merged = compose(merged, one)
        size = placed.op.out_size(size)
    return merged


def _numbers(placed: Placed, key: Tensor, size: Triple, channels: Mapping[str, int], spatial_dims: int) -> Drawn:
    op, own = placed.op, op_key(key, placed.position)
    space = size[3 - spatial_dims :]
    if isinstance(op, BatchOp):
        return op.draw_batch(own, (channels[op.keys[0]], *space))
    if isinstance(op, ValueOp):
        return {**op.draw(own, (channels[op.keys[0]], *space)), "use": used(own, op.prob)}
    return {}


def part(draws: Draws, first: int, count: int) -> Draws:
    """What was drawn for `count` samples from the `first` one on, in tensors of their own."""
    return pytree.tree_map(lambda value: value[first : first + count].clone(), draws)
