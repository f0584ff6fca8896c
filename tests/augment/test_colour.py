"""Colour jitter is torchvision's."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.augment.colour import ColorJitter
from hasten.augment.op import Drawn
from hasten.sample.random import sample_key

NAMES = ("brightness", "contrast", "saturation", "hue")
SIZES = [(19, 12), (5, 11, 8)]


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def images(count: int, size: tuple[int, ...], seed: int = 0) -> Tensor:
    """Half of them with few levels, so that channels are often alike, and with black and white in them."""
    draw = torch.Generator().manual_seed(seed)
    image = torch.rand(count, 3, *size, generator=draw)
    image[::2] = torch.round(image[::2] * 3) / 3
    image[:, :, 0] = image[:, :1, 0]
    return image


# torchvision.transforms.functional on a float image (3, *S), as it is published (0.29).


def grey(image: Tensor) -> Tensor:
    red, green, blue = image.unbind(0)
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[None]


def blended(image: Tensor, other: Tensor, ratio: float) -> Tensor:
    return (ratio * image + (1.0 - ratio) * other).clamp(0, 1)


def hue_shifted(image: Tensor, shift: float) -> Tensor:
    red, green, blue = image.unbind(0)
    high, low = image.max(0).values, image.min(0).values
    flat = high == low
    chroma = high - low
    ones = torch.ones_like(high)
    saturation = chroma / torch.where(flat, ones, high)
    divisor = torch.where(flat, ones, chroma)
    from_red, from_green, from_blue = (high - red) / divisor, (high - green) / divisor, (high - blue) / divisor
    hue = (high == red) * (from_blue - from_green)
    hue = hue + ((high == green) & (high != red)) * (2.0 + from_red - from_blue)
    hue = hue + ((high != green) & (high != red)) * (4.0 + from_green - from_red)
    hue = (torch.fmod(hue / 6.0 + 1.0, 1.0) + shift) % 1.0
    sector = torch.floor(hue * 6.0)
    part = hue * 6.0 - sector
    p = (high * (1.0 - saturation)).clamp(0, 1)
    q = (high * (1.0 - saturation * part)).clamp(0, 1)
    t = (high * (1.0 - saturation * (1.0 - part))).clamp(0, 1)
    channels = [(high, q, p, p, t, high), (t, high, high, q, p, p), (p, p, t, high, high, q)]
    chosen = (sector.long() % 6)[None]
    return torch.stack([torch.stack(channel).gather(0, chosen)[0] for channel in channels])


def one_change(image: Tensor, number: int, value: float) -> Tensor:
    if number == 0:
        return blended(image, torch.zeros_like(image), value)
    if number == 1:
        return blended(image, grey(image).mean(), value)
    if number == 2:
        return blended(image, grey(image), value)
    return hue_shifted(image, value)


def expected(image: Tensor, drawn: Mapping[str, Tensor], numbers: tuple[int, ...] = (0, 1, 2, 3)) -> Tensor:
    actual = []
    for row, sample in enumerate(image):
        for number in drawn["order"][row].tolist():
            if number in numbers:
                sample = one_change(sample, number, float(drawn[NAMES[number]][row]))
        actual.append(sample)
    return torch.stack(actual)


def close(result: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(result, wanted, rtol=1e-4, atol=1e-5)


def all_orders(seed: int = 0) -> Drawn:
    draw = torch.Generator().manual_seed(seed)
    factors = {name: torch.rand(24, generator=draw) * 2 for name in NAMES[:3]}
    shift = torch.rand(24, generator=draw) - 0.5
    return {**factors, "hue": shift, "order": torch.tensor(list(permutations(range(4))))}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_every_order_is_torchvisions(size: tuple[int, ...], seed: int) -> None:
    op = ColorJitter(brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5)
    image, drawn = images(24, size, seed), all_orders(seed)
    actual = op.apply(image, drawn)
    assert close(actual, expected(image, drawn))
    assert actual.min() >= 0
    assert actual.max() <= 1


def test_images_of_0_to_255() -> None:
    image, drawn = images(24, (9, 13)), all_orders()
    options: dict[str, Any] = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.5}
    actual = ColorJitter(**options, value_range=255).apply(image * 255, drawn)
    assert close(actual / 255, expected(image, drawn))


def test_torchvision_itself() -> None:
    try:
        functional: Any = pytest.importorskip("torchvision.transforms.functional")
    except RuntimeError as error:  # made for another build of torch
        pytest.skip(str(error))
    image, drawn = images(24, (17, 10)), all_orders()
    changes = [getattr(functional, f"adjust_{name}") for name in NAMES]
    results = []
    for row, sample in enumerate(image):
        for number in drawn["order"][row].tolist():
            sample = changes[number](sample, float(drawn[NAMES[number]][row]))
        results.append(sample)
    op = ColorJitter(brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5)
    assert close(op.apply(image, drawn), torch.stack(results))
