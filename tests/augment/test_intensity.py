"""Shifts, scales, clips and normalisation against MONAI and batchgeneratorsv2."""

from __future__ import annotations

from typing import Any

import monai.transforms as mt
import pytest
import torch
from torch import Tensor

from hasten.augment.intensity import (
    Brightness,
    Normalize,
)
from hasten.sample.random import sample_key

SIZES = [(1, 9, 14), (3, 12, 7), (2, 6, 9, 11)]
each_size = pytest.mark.parametrize("shape", SIZES, ids=str)
each_way = pytest.mark.parametrize("channel_wise", [False, True])


def keys(count: int) -> Tensor:
    return sample_key(torch.tensor(0), torch.arange(count))


def images(shape: tuple[int, ...], seed: int, *, holes: bool = False) -> Tensor:
    """Two samples of Hounsfield-like values whose channels differ, with zeros on request."""
    draw = torch.Generator().manual_seed(seed)
    image = torch.randn(2, *shape, generator=draw) * 150 - 200
    image = image * torch.linspace(0.5, 2, shape[0]).view(-1, *[1] * (len(shape) - 1))
    return image * (torch.rand(image.shape, generator=draw) < 0.4) if holes else image


def close(actual: Tensor, wanted: list[Any]) -> None:
    expected = torch.stack([torch.as_tensor(each).as_subclass(Tensor) for each in wanted])
    assert torch.allclose(actual, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def random_of(op: Any, **state: Any) -> Any:
    """A MONAI transform that is about to run with the given state."""
    op._do_transform = True
    for name, value in state.items():
        setattr(op, name, value)
    return lambda image: op(image.clone(), randomize=False)


@each_size
@each_way
@pytest.mark.parametrize("nonzero", [False, True])
@pytest.mark.parametrize("given_one", ["", "subtrahend", "divisor", "both"])
def test_normalize_is_monais(shape: tuple[int, ...], channel_wise: bool, nonzero: bool, given_one: str) -> None:
    image = images(shape, 5, holes=nonzero)
    many = tuple(float(10 * (number + 1)) for number in range(shape[0]))
    value: Any = many if channel_wise else 20.0
    fields = {name: value for name in ("subtrahend", "divisor") if given_one in (name, "both")}
    op = Normalize(nonzero=nonzero, channel_wise=channel_wise, **fields)
    theirs = mt.NormalizeIntensity(nonzero=nonzero, channel_wise=channel_wise, **fields)
    close(op.apply(image, {}), [theirs(image[row].clone()) for row in range(2)])


@each_way
@pytest.mark.parametrize("nonzero", [False, True])
def test_an_image_of_one_value_is_normalised_to_zero(channel_wise: bool, nonzero: bool) -> None:
    image = torch.full((2, 2, 33, 37, 29), -1000.1)
    image[1] = 0
    result = Normalize(channel_wise=channel_wise, nonzero=nonzero).apply(image, {})
    assert result.abs().max() < 1e-2
    assert not result[1].any()


def test_a_large_mean_does_not_spoil_the_deviation() -> None:
    image = torch.randn(1, 1, 64, 64, 64, generator=torch.Generator().manual_seed(0)) + 3000
    result = Normalize().apply(image, {}).double()
    assert abs(float(result.std(correction=0)) - 1) < 1e-4
    assert abs(float(result.mean())) < 1e-3


def test_a_divisor_of_zero_is_one() -> None:
    image = images((2, 5, 6), 0)
    assert torch.equal(Normalize(subtrahend=0.0, divisor=0.0).apply(image, {}), image)
    zeros = Normalize(subtrahend=(0.0, 0.0), divisor=(0.0, 2.0), channel_wise=True)
    assert torch.equal(zeros.apply(image, {}), image / torch.tensor([1.0, 2.0]).view(2, 1, 1))


def test_brightness_is_batchgenerators() -> None:
    brightness = pytest.importorskip("batchgeneratorsv2.transforms.intensity.brightness")
    theirs = brightness.MultiplicativeBrightnessTransform((0.5, 2), False, 0.5)
    for shape in SIZES:
        image, op = images(shape, 7), Brightness(p_per_channel=0.5)
        drawn = op.draw(keys(2), shape)
        wanted = []
        for row in range(2):
            chosen = torch.where(drawn["multiplier"][row] != 1)[0]
            multipliers = drawn["multiplier"][row][chosen]
            wanted.append(theirs._apply_to_image(image[row].clone(), apply_to_channel=chosen, multipliers=multipliers))
        close(op.apply(image, drawn), wanted)
