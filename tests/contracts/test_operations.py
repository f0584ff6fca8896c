"""What every operation owes its caller, whatever it does to a voxel."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import hasten.augment
from hasten.augment.affine import PhysicalAffine, Zoom
from hasten.augment.chain import Batch, Chain
from hasten.augment.crop import (
    CentreCrop,
    CropByLabelClasses,
    CropByPosNegLabel,
    CropOp,
    ForegroundCrop,
    SpatialCrop,
)
from hasten.augment.draw import Draws
from hasten.augment.grid import Cut, Resize
from hasten.augment.op import chances, op_key
from hasten.augment.program import Segment
from hasten.cache.arena import Store
from tests.augment.examples import EXAMPLES
from tests.augment.stores import RENDERERS, Shape, bind_store, random_store
from tests.augment.test_program import MAPS
from tests.augment.test_value_ops import NUM_CHANNELS

COUNT = 8
SHAPES: list[Shape] = [(9, 11, 8), (4, 12, 5), (10, 10, 10)]
"""Larger than the patch, smaller than it, and one without foreground."""
PATCH: dict[int, Shape] = {2: (1, 6, 6), 3: (6, 6, 6)}
SMALL: dict[int, Shape] = {2: (1, 4, 4), 3: (4, 4, 4)}


def drawn_by_prob(dims: int) -> list[Any]:
    """Those that happen or not."""
    strong = PhysicalAffine(prob=1, rotate_deg=(40.0, 30.0, 30.0), zoom=(0.7, 1.4), spacing=(3.0, 1.0, 0.8))
    return [*EXAMPLES, *MAPS, strong, Zoom(prob=1, min_zoom=(0.6,), max_zoom=(0.8,), align_corners=True)]


def fixed(dims: int) -> list[Any]:
    """Those that are done to every sample alike, or change its size."""
    resize = Resize(spatial_size=(8, 5, 7)[3 - dims :])
    return [Cut(size=SMALL[dims]), Cut(size=SMALL[dims], random=True), resize]


def crops(dims: int) -> list[Any]:
    size: Any = PATCH[dims]
    return [
        ForegroundCrop(size=size), CropByPosNegLabel(size=size, pad=True), SpatialCrop(size=size, pad=True),
        CropByLabelClasses(size=size, num_classes=3, pad=True), CentreCrop(size=size, pad=True),
    ]  # fmt: skip


def each(make: Any) -> pytest.MarkDecorator:
    """Every one of these in 2-D and 3-D. What keeps the shape is slow in 2-D, which is 3-D of one slice."""
    pairs = [
        pytest.param(
            op, dims, id=f"{dims}-D {op!r}"[:90], marks=pytest.mark.slow if dims == 2 and op in EXAMPLES else ()
        )
        for dims in (2, 3)
        for op in make(dims)
    ]
    return pytest.mark.parametrize(("op", "dims"), pairs)


each_drawn_by_prob = each(drawn_by_prob)
each_operation = each(lambda dims: [*drawn_by_prob(dims), *fixed(dims), *crops(dims)])
each_renderer = pytest.mark.parametrize("renderer", RENDERERS)
one_renderer = pytest.mark.parametrize("renderer", list(RENDERERS)[:1])
"""That the others agree with it is seen above, and in `tests/augment/test_program.py`."""


@cache
def store(dims: int, channels: int) -> Store:
    shapes: Sequence[Shape] = [(1, *shape[1:]) for shape in SHAPES] if dims == 2 else SHAPES
    return random_store(shapes, num_channels=channels)


def chain_of(op: Any, dims: int) -> Chain:
    """The operation alone, after a crop; None is the crop alone."""
    ops = () if op is None or isinstance(op, CropOp) else (op,)
    crop = op if isinstance(op, CropOp) else ForegroundCrop(size=PATCH[dims])
    return Chain(crop=crop, ops=ops, keys=("image", "label"), label_keys=("label",))


@cache
def segment(op: Any, dims: int, channels: int, batch_size: int = COUNT) -> Segment:
    return bind_store(chain_of(op, dims), store(dims, channels), batch_size=batch_size)


@cache
def drawn(op: Any, dims: int, channels: int, step: int, batch_size: int = COUNT) -> Draws:
    return next(iter(segment(op, dims, channels, batch_size).draws(step, step + 1)))


def channels_of(op: Any) -> int:
    return NUM_CHANNELS.get(type(op).__name__, 2)


def batch_of(renderer: str, op: Any, dims: int, *, like: Any = None, step: int = 0, batch_size: int = COUNT) -> Batch:
    """like: the operation whose number of channels the cases have."""
    given = (op, dims, channels_of(like or op))
    return RENDERERS[renderer](segment(*given, batch_size), drawn(*given, step, batch_size))


def equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def rows(use: Tensor, value: Tensor) -> Tensor:
    return use.view(-1, *[1] * (value.ndim - 1))


@each_renderer
@each_drawn_by_prob
def test_who_draws_it_is_changed_and_nobody_else_in_any_bit(op: Any, dims: int, renderer: str) -> None:
    never, sometimes, always = (batch_of(renderer, replace(op, prob=prob), dims) for prob in (0.0, 0.5, 1.0))
    off = batch_of(renderer, None, dims, like=op)
    assert equal(never, off)
    change = torch.stack([(always[key] != off[key]).flatten(1).any(1) for key in off]).any(0)
    assert change.sum() >= COUNT // 2
    use = chances(op_key(drawn(replace(op, prob=0.5), dims, channels_of(op), 0).key, 0)) < 0.5
    assert 0 < use.sum() < COUNT
    assert equal(sometimes, {key: torch.where(rows(use, off[key]), always[key], off[key]) for key in off})


@each_renderer
@each_operation
def test_a_batch_is_its_samples_one_at_a_time(op: Any, dims: int, renderer: str) -> None:
    batch = batch_of(renderer, op, dims, step=2)
    for row in (0, COUNT - 1):
        alone = batch_of(renderer, op, dims, step=2 * COUNT + row, batch_size=1)
        assert (batch["image"][row] - alone["image"][0]).abs().max() <= 1e-6
        assert torch.equal(batch["label"][row], alone["label"][0])


@each_operation
def test_seed_and_step_give_its_bits_and_no_others(op: Any, dims: int) -> None:
    own = segment(op, dims, channels_of(op))
    again = bind_store(own.chain, store(dims, channels_of(op)), batch_size=COUNT)
    again(0)
    assert equal(again(3), own(3))
    other = replace(again, seed=torch.tensor(1))(3)
    assert not equal(other, again(3)) or isinstance(op, CentreCrop)


@one_renderer
@each_operation
def test_labels_keep_their_set(op: Any, dims: int, renderer: str) -> None:
    given = (op, dims, channels_of(op))
    own = segment(*given)
    held = {**own.store.values, "label": own.store.values["label"] * 100}
    label = RENDERERS[renderer](replace(own, store=replace(own.store, values=held)), drawn(*given, 0))["label"]
    assert label.dtype == torch.uint8
    assert set(label.unique().tolist()) == {0, 100, 200}


@one_renderer
@each_operation
def test_constant_images_stay_finite(op: Any, dims: int, renderer: str) -> None:
    given = (op, dims, channels_of(op))
    own = segment(*given)
    for value in (0.0, 1e4):
        held = {**own.store.values, "image": torch.full_like(own.store.values["image"], value)}
        image = RENDERERS[renderer](replace(own, store=replace(own.store, values=held)), drawn(*given, 0))["image"]
        assert image.isfinite().all()


def test_no_operation_is_left_out() -> None:
    modules = pkgutil.iter_modules(hasten.augment.__path__, "hasten.augment.")
    names = [
        each.name for each in modules if not each.name.endswith("_triton")
    ]  # these import Triton, and hold no class
    results = {
        one for name in names for _, one in inspect.getmembers(importlib.import_module(name), inspect.isclass)
        if one.__module__.startswith("hasten.augment.") and not getattr(one, "_is_protocol", False)
        and not one.__name__.startswith("_")
    }  # fmt: skip
    methods = ({"draw", "apply"}, {"draw", "map"}, {"start", "size"})
    wanted = {one for one in results if any(names <= set(dir(one)) for names in methods)}
    assert wanted == {type(op) for op in (*drawn_by_prob(3), *fixed(3), *crops(3))}
