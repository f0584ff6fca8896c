"""Patches of another size and axes in another order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from hasten.augment.chain import Chain
from hasten.augment.make_program import augment_batch, segment_of_batch
from hasten.augment.reshape import AlignedZoom, Cut, Recentre, Reorder, quarter_turns
from hasten.config.schema import Triple
from hasten.sample.random import sample_key

OPS: list[Any] = [
    Cut(size=(5, 6, 7)),
    Cut(size=(5, 6, 7), random=True),
    Recentre(size=(6, 9, 20)),
    Reorder(order=(2, 0, 1), backward=(0, 2)),
    AlignedZoom(prob=1, min_zoom=(0.8,), max_zoom=(1.2,)),
]


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def passed(op: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    chain = Chain(crop=None, ops=(op,), keys=tuple(batch), label_keys=("label",))
    return augment_batch(segment_of_batch(chain, batch, 0, "cpu"), batch, 0)


def batch(shape: tuple[int, ...], count: int = 4) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "image": torch.rand(count, 2, *shape, generator=draw),
        "label": torch.randint(0, 3, (count, 1, *shape), generator=draw, dtype=torch.uint8),
    }


@pytest.mark.parametrize("shape", [(8, 9, 10), (9, 10)], ids=str)
def test_a_random_cut_is_a_part_of_the_patch_at_any_place(shape: tuple[int, ...]) -> None:
    given = batch(shape, 200)
    size: Any = (*[1] * (3 - len(shape)), *[5, 6, 7][-len(shape) :])
    result = passed(Cut(size=size, random=True), given)
    places = set()
    for row in range(200):
        windows = given["image"][row]
        for axis, side in enumerate(size[-len(shape) :], 1):
            windows = windows.unfold(axis, side, 1)
        dims = len(shape)
        same = (windows == result["image"][row].reshape(2, *[1] * dims, *size[-dims:])).flatten(dims + 1).all(-1).all(0)
        places.add(tuple(same.nonzero()[0].tolist()))
        assert int(same.sum()) == 1
    room = [side - own + 1 for side, own in zip(shape, size[-len(shape) :], strict=True)]
    for axis, count in enumerate(room):
        assert {place[axis] for place in places} == set(range(count))


@pytest.mark.parametrize(("first", "second"), [(0, 1), (1, 2), (2, 0)])
@pytest.mark.parametrize("k", range(4))
def test_quarter_turns_are_torchs(k: int, first: int, second: int) -> None:
    given = batch((6, 7, 8))
    order, backward = quarter_turns(k, first, second)
    result = passed(Reorder(order=order, backward=backward), given)
    for key, value in given.items():
        assert torch.equal(result[key], torch.rot90(value, k, (first + 2, second + 2)))


def test_an_order_of_axes_is_a_permutation() -> None:
    given = batch((6, 7, 8))
    result = passed(Reorder(order=(2, 0, 1), backward=(1,)), given)
    for key, value in given.items():
        assert torch.equal(result[key], value.permute(0, 1, 4, 2, 3).flip(3))


def test_another_size_about_the_same_centre() -> None:
    given = batch((6, 8, 10))
    result = passed(Recentre(size=(4, 8, 14), mode=("nearest", "nearest")), given)["image"]
    assert torch.equal(result[..., 2:-2], given["image"][:, :, 1:-1])
    assert (result[..., :2] == 0).all()


@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("size", [(8, 9, 10), (1, 9, 10)], ids=str)
def test_a_batch_is_its_samples_one_by_one_and_nothing_is_read(op: Any, size: Triple) -> None:
    dims = 2 if size[0] == 1 else 3
    drawn = op.draw(keys(4), size, dims)
    result = op.map(drawn, size, dims)
    assert result.linear.shape == (4, 3, 3)
    for at in range(4):
        alone = op.map(op.draw(keys(4)[at : at + 1], size, dims), size, dims)
        assert torch.equal(alone.linear[0], result.linear[at])
        assert torch.equal(alone.shift[0], result.shift[at])
    with FakeTensorMode():
        op.map(op.draw(torch.empty(3, 2, dtype=torch.int64), size, dims), size, dims)
