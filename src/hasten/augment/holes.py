"""Boxes in which values are dropped or shuffled: their number and sizes differ by sample, up to known maxima."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hasten.augment.op import Count, Drawn, Operation, check_range
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words, words_at

_COUNT, _SIZE, _START, _FILL, _ORDER = 1, 2, 3, 4, 5
_WORD = 31
"""Holes that fit into one int32, a bit each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Boxes(Operation):
    """Boxes of an image, described in `CoarseDropout`."""

    holes: Count = 1
    spatial_size: int | tuple[int, ...] = 8
    max_holes: int | None = None
    max_spatial_size: int | tuple[int, ...] | None = None
    keeps_type: ClassVar[bool] = True

    def check(self) -> None:
        if self.max_holes is not None and self.max_holes < self.holes:
            raise ValueError(f"{type(self).__name__}: max_holes={self.max_holes} is below holes={self.holes}")

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        sides = shape[1:]
        least, most = self._whole("spatial_size", sides), self.largest(sides)
        if any(low > high for low, high in zip(least, most, strict=True)):
            raise ValueError(
                f"{type(self).__name__}: max_spatial_size={self.max_spatial_size} is below "
                f"spatial_size={self.spatial_size}"
            )
        count, axes = self.max_holes or self.holes, len(sides)
        choices = constant(tuple(high - low + 1 for low, high in zip(least, most, strict=True)), key.device)
        words = random_words(key, _SIZE, count * axes).view(-1, count, axes)
        size = below(words, choices) + constant(least, key.device)
        room = constant(sides, key.device) - size + 1
        start = below(random_words(key, _START, count * axes).view(-1, count, axes), room)
        more = constant((count - self.holes + 1,), key.device)
        present = torch.arange(count, device=key.device) < self.holes + below(random_words(key, _COUNT, 1), more)
        return {"start": start, "size": size * present[..., None], "key": key}

    def largest(self, sides: tuple[int, ...]) -> tuple[int, ...]:
        """The size of the largest box in an image of these sides."""
        return self._whole("spatial_size" if self.max_spatial_size is None else "max_spatial_size", sides)

    def _whole(self, field: str, sides: tuple[int, ...]) -> tuple[int, ...]:
        """One size an axis, at most the side of the image."""
        value = getattr(self, field)
        each = (value,) * len(sides) if isinstance(value, int) else value
        if len(each) != len(sides):
            raise ValueError(
                f"{type(self).__name__}: {field}={value} does not fit an image of {len(sides)} axes; write one number "
                "an axis"
            )
        return tuple(min(length, side) if length > 0 else side for length, side in zip(each, sides, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class CoarseDropout(_Boxes):
    """Fills boxes of the image, or with `dropout_holes=False` all but the boxes. MONAI's RandCoarseDropout.

    holes ... max_holes boxes (None: `holes`), each of a size from spatial_size to max_spatial_size (None: spatial_size)
    for each axis; a number for all axes or one an axis, below 1 for the whole side. fill_value: a number, (low, high)
    for noise between them, None for noise between the smallest and the largest value of the image.
    `drawn`: start, size (B, max_holes, number of axes) int64 voxels, size 0 for a box that is not there (the first is);
    key (B, 2) for the noise. Differs on purpose: sizes are drawn independently, where each of MONAI's is at least the
    one before; noise belongs to the voxel, so that boxes that overlap agree.
    """

    dropout_holes: bool = True
    fill_value: float | tuple[float, float] | None = None

    def check(self) -> None:
        _Boxes.check(self)
        if isinstance(self.fill_value, tuple):
            check_range("CoarseDropout", "fill_value", self.fill_value)

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        start, size, sides = drawn["start"], drawn["size"], image.shape[2:]
        extent = self.largest(sides)
        channels, voxels = image.shape[1], math.prod(sides)
        if self.dropout_holes and 2 * start.shape[1] * math.prod(extent) <= voxels:
            channel = torch.arange(channels, device=image.device)[:, None] * voxels
            place = (_places(start, size, extent, sides)[:, None, :] + channel).flatten(1)
            return image.flatten(1).scatter(1, place, self._filling(image, drawn, place)).view(image.shape)
        mask = inside(start, size, sides)[:, None]
        every = torch.arange(channels * voxels, device=image.device).expand(image.shape[0], -1)
        filling = self._filling(image, drawn, every).view(image.shape)
        return torch.where(mask, filling, image) if self.dropout_holes else torch.where(mask, image, filling)

    def _filling(self, image: Tensor, drawn: Mapping[str, Tensor], place: Tensor) -> Tensor:
        """(B, M): what is written at the flat places (B, M) of each sample."""
        if isinstance(self.fill_value, float | int):
            return torch.full(place.shape, float(self.fill_value), dtype=image.dtype, device=image.device)
        share = (words_at(drawn["key"], _FILL, place) >> 8).to(torch.float32) * (1.0 / (1 << 24))
        if isinstance(self.fill_value, tuple):
            return self.fill_value[0] + (self.fill_value[1] - self.fill_value[0]) * share
        every = tuple(range(1, image.ndim))
        low, high = image.amin(every)[:, None], image.amax(every)[:, None]
        return low + (high - low) * share


@dataclass(frozen=True, kw_only=True, slots=True)
class CoarseShuffle(_Boxes):
    """Shuffles the voxels in boxes of the image, box by box, each channel by itself. MONAI's RandCoarseShuffle.

    The boxes are described as in `CoarseDropout`. `drawn`: start, size (B, max_holes, number of axes) int64 voxels,
    size 0 for a box that is not there; key (B, 2) for the order of voxels. Takes memory of some 50 bytes for each voxel
    of `max_holes` boxes of the largest size.
    """

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        batch, channels, *sides = image.shape
        holes, slots = drawn["start"].shape[1], math.prod(self.largest(tuple(sides)))
        # (B, holes, C, slots) from here on. A box that is not there is a box of one voxel, which no order changes.
        start, size = drawn["start"][:, :, None, None], drawn["size"].clamp(min=1)[:, :, None, None]
        number = torch.arange(slots, device=image.device)
        beyond = number >= size.prod(-1)
        word = random_words(drawn["key"], _ORDER, holes * channels * slots).view(batch, holes, channels, slots) >> 1
        # Sorted by random words, with the number below them so that none are equal, and those beyond the box last.
        word = (word << 31) + number + beyond.to(torch.int64) * (1 << 62)
        order = torch.sort(word, dim=-1).values & 0x7FFFFFFF
        # Slots beyond the box do again what the first slot does.
        source = _numbered(torch.where(beyond, order[..., :1], order), start, size, tuple(sides))
        target = _numbered(torch.where(beyond, torch.zeros_like(number), number), start, size, tuple(sides))
        result = image.flatten(2).clone()
        for hole in range(holes):
            values = result.gather(2, source[:, hole])
            result.scatter_(2, target[:, hole].expand(values.shape), values)
        return result.view(image.shape)


def inside(start: Tensor, size: Tensor, sides: tuple[int, ...]) -> Tensor:
    """(B, *S) bool: whether a voxel lies in any of the boxes. start, size: (B, holes, number of axes)."""
    mask = None
    for first in range(0, start.shape[1], _WORD):
        begin, extent = start[:, first : first + _WORD], size[:, first : first + _WORD]
        bit = torch.ones_like(begin[0, :, 0]) << torch.arange(begin.shape[1], device=start.device)
        word = None
        for axis, side in enumerate(sides):
            at = torch.arange(side, device=start.device)
            covered = (at >= begin[:, :, axis, None]) & (at < (begin + extent)[:, :, axis, None])
            # One bit a box: of all axes together, a voxel has the bits of the boxes that it lies in.
            bits = (covered * bit[:, None]).sum(1).to(torch.int32)
            bits = bits.view(-1, *[1] * axis, side, *[1] * (len(sides) - 1 - axis))
            word = bits if word is None else word & bits
        assert word is not None
        mask = word.bool() if mask is None else mask | word.bool()
    assert mask is not None
    return mask


def _places(start: Tensor, size: Tensor, extent: tuple[int, ...], sides: tuple[int, ...]) -> Tensor:
    """(B, holes * voxels of the largest box): flat places of all voxels in boxes; some more than once, none outside."""
    there = size[..., :1] > 0
    start, size = torch.where(there, start, start[:, :1]), torch.where(there, size, size[:, :1])
    place: Tensor | None = None
    for axis, (most, side) in enumerate(zip(extent, sides, strict=True)):
        offset = torch.minimum(torch.arange(most, device=start.device), size[:, :, axis, None] - 1)
        coordinate = start[:, :, axis, None] + offset
        place = coordinate if place is None else (place[..., None] * side + coordinate[:, :, None, :]).flatten(2)
    assert place is not None
    return place.flatten(1)


def _numbered(number: Tensor, start: Tensor, size: Tensor, sides: tuple[int, ...]) -> Tensor:
    """(...) flat places of voxels numbered in their box, last axis fastest. start, size: (..., number of axes)."""
    place, stride = torch.zeros_like(number), 1
    for axis in range(len(sides) - 1, -1, -1):
        length = size[..., axis]
        place = place + (start[..., axis] + torch.remainder(number, length)) * stride
        number, stride = torch.div(number, length, rounding_mode="floor"), stride * sides[axis]
    return place
