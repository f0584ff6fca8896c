"""The contract of every operation that changes values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hasten.augment.op import Drawn, ValueOp
from hasten.sample.random import sample_key
from tests.augment.examples import EXAMPLES

SIZES = [(1, 12, 9), (3, 7, 16), (1, 6, 9, 8), (2, 5, 12, 7)]
NUM_CHANNELS = {"ColorJitter": 3, "StainJitter": 3}


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def images(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(count, *shape, generator=draw)


def fitting(op: ValueOp, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (NUM_CHANNELS.get(type(op).__name__, shape[0]), *shape[1:])


def same(drawn: Drawn, other: Drawn) -> bool:
    assert drawn.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in drawn.items())


each_op = pytest.mark.parametrize("op", EXAMPLES, ids=lambda op: repr(op)[:80])
each_size = pytest.mark.parametrize("shape", SIZES, ids=str)


@each_op
@each_size
def test_keeps_shape_and_type_and_inputs(op: ValueOp, shape: tuple[int, ...]) -> None:
    shape = fitting(op, shape)
    image = images(3, shape)
    before = image.clone()
    drawn = op.draw(keys(3), shape)
    held = {name: value.clone() for name, value in drawn.items()}
    result = op.apply(image, drawn)
    assert result.shape == image.shape
    assert result.dtype == torch.float32
    assert torch.isfinite(result).all()
    assert not torch.equal(result, image)
    assert torch.equal(image, before)
    assert same(drawn, held)
    assert torch.equal(op.apply(image, drawn), result)


@each_op
@pytest.mark.parametrize("shape", SIZES[-1:], ids=str)
def test_nothing_is_read_on_the_host(op: ValueOp, shape: tuple[int, ...]) -> None:
    shape = fitting(op, shape)
    with FakeTensorMode():
        key = torch.empty(3, 2, dtype=torch.int64)
        result = op.apply(torch.empty(3, *shape), op.draw(key, shape))
        assert tuple(result.shape) == (3, *shape)


@each_op
def test_a_probability_out_of_range_is_refused(op: ValueOp) -> None:
    with pytest.raises(ValueError, match=rf"{type(op).__name__}.*prob=1\.5"):
        replace(cast("Any", op), prob=1.5)
