"""Colour jitter of RGB images, whose four changes have a random order for each sample."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from hasten.augment.op import Drawn, Operation, Prob, Range, check_range, space, spread
from hasten.sample.constant import constant
from hasten.sample.random import random_words, uniform_in

_NAMES = ("brightness", "contrast", "saturation", "hue")
"""Operations in torchvision's numbering; each one's place is its stream less 1."""
_CONTRAST, _SATURATION, _HUE = 1, 2, 3
_ORDER = 5
_GREY = (0.2989, 0.587, 0.114)


def _check_largest(name: str, field: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ValueError(f"{name}: {field}={value}; give the largest value of an image: 1 or 255")


LargestValue = Annotated[float, _check_largest]


class _Blend(NamedTuple):
    """A blend of an image with a grey one, each sample's own; (B,) each."""

    factor: Tensor
    to_grey: Tensor
    """1 where the image is blended with itself in grey (saturation), 0 elsewhere."""
    to_mean: Tensor
    """1 where it is blended with the mean of that (contrast), 0 elsewhere."""
    before_hue: Tensor
    """bool."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColorJitter(Operation):
    """Changes brightness, contrast, saturation and hue of RGB, in random order.

    `drawn`: brightness, contrast, saturation (B,) factors, hue (B,) shift in turns of the colour wheel, order (B, 4)
    int64 permutation: the order of these four. torchvision's ColorJitter and its arguments: a
    number v stands for (max(0, 1 - v), 1 + v), for hue for (-v, v); a change whose argument is 0 never runs, whatever
    `drawn` holds. Values lie between 0 and `value_range`. In 3-D the mean that contrast blends with is that of the
    volume.
    """

    prob: Prob = 1.0
    brightness: float | Range = 0.0
    contrast: float | Range = 0.0
    saturation: float | Range = 0.0
    hue: float | Range = 0.0
    value_range: LargestValue = 1.0

    def check(self) -> None:
        self._ranges()

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        _check_rgb(shape[0])
        drawn = {
            name: uniform_in(key, number + 1, *limits)[:, 0]
            for number, (name, limits) in enumerate(zip(_NAMES, self._ranges(), strict=True))
        }
        return {**drawn, "order": torch.argsort(random_words(key, _ORDER, 4), dim=1, stable=True)}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        _check_rgb(image.shape[1])
        ranges = self._ranges()
        blends = _in_order(drawn, tuple(number for number in range(_HUE) if ranges[number] != (1.0, 1.0)))
        if ranges[_HUE] == (0.0, 0.0):
            for blend in blends:
                image = self._blended(image, blend, blend.factor)
            return image
        # Hue may come before, between or after the others. It runs once, and the others run twice: before it and after
        # it, with a factor of 1, which changes nothing, where it is not their turn.
        for blend in blends:
            image = self._blended(image, blend, torch.where(blend.before_hue, blend.factor, 1.0))
        image = _rotate_hue(image, drawn["hue"])
        for blend in blends:
            image = self._blended(image, blend, torch.where(blend.before_hue, 1.0, blend.factor))
        return image

    def _ranges(self) -> tuple[Range, ...]:
        return tuple(_range_of(name, getattr(self, name)) for name in _NAMES)

    def _blended(self, image: Tensor, blend: _Blend, factor: Tensor) -> Tensor:
        grey = image[:, 0:1] * _GREY[0]
        grey.add_(image[:, 1:2], alpha=_GREY[1]).add_(image[:, 2:3], alpha=_GREY[2])
        mean = grey.mean((1, *space(grey)), keepdim=True) * spread(blend.to_mean, image)
        other = grey.mul_(spread(blend.to_grey, image)).add_(mean)
        return torch.lerp(other, image, spread(factor, image)).clamp_(0.0, self.value_range)


def _check_rgb(channels: int) -> None:
    if channels != 3:
        raise ValueError(f"ColorJitter: the image has {channels} channel(s); it works on the 3 channels of RGB")


def _range_of(name: str, value: float | Range) -> Range:
    centre, low, high = (0.0, -0.5, 0.5) if name == "hue" else (1.0, 0.0, math.inf)
    if isinstance(value, int | float):
        if not value >= 0:
            raise ValueError(
                f"ColorJitter: {name}={value}; a single number must not be negative: give it or (low, high)"
            )
        first, last = centre - value, centre + value
        limits = (first if name == "hue" else max(0.0, first), last)
    else:
        if len(value) != 2:
            raise ValueError(f"ColorJitter: {name}={value}; give a number or (low, high)")
        limits = (float(value[0]), float(value[1]))
    check_range("ColorJitter", name, limits, low=low, high=high)
    return limits


def _in_order(drawn: Mapping[str, Tensor], numbers: tuple[int, ...]) -> tuple[_Blend, ...]:
    """The blends among the four changes that have these numbers: first, second, third of each sample."""
    if not numbers:
        return ()
    place = torch.argsort(drawn["order"], dim=1)
    places = torch.stack([place[:, number] for number in numbers], dim=1)
    turns = torch.argsort(places, dim=1)
    factor = torch.stack([drawn[_NAMES[number]] for number in numbers], dim=1).gather(1, turns)
    before_hue = places.gather(1, turns) < place[:, _HUE:]

    def share(number: int) -> Tensor:
        return (turns == (numbers.index(number) if number in numbers else -1)).to(torch.float32)

    to_grey, to_mean = share(_SATURATION), share(_CONTRAST)
    return tuple(
        _Blend(factor[:, turn], to_grey[:, turn], to_mean[:, turn], before_hue[:, turn]) for turn in range(len(numbers))
    )


def _rotate_hue(image: Tensor, hue: Tensor) -> Tensor:
    """The colours turned on the wheel: through HSV and back, as one piece. image: (B, 3, *S); hue: (B,) turns."""
    red, green, blue = image[:, 0:1], image[:, 1:2], image[:, 2:3]
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    # Sixths of a turn away from red, towards green above 0: with chroma 1 and low 0 its size is 1 - red + green +
    # blue in every sector, which spares the selection among three formulas.
    angle = low.neg_().add_(chroma).add_(green).add_(blue).sub_(red)
    angle.div_(chroma.clamp_min(torch.finfo(image.dtype).tiny)).copysign_(green - blue)
    turn = constant((3.0, 1.0, -1.0), image.device) + 6.0 * hue[:, None]
    turn = turn - 6.0 * torch.round(turn / 6.0)
    # Both lie in -3 ... 3, so the distance on the wheel needs no remainder. A channel is lowest up to 1 away from the
    # opposite of its colour, and highest from 2 on.
    share = (angle + spread(turn, image)).abs_().sub_(3.0).abs_().sub_(1.0).clamp_(0.0, 1.0)
    return share.mul_(chroma.neg_()).add_(high)
