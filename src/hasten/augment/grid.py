"""Operations that move whole voxels: flips, quarter turns, cuts; and resizing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.maps import Interpolation, Map, SpatialOperation, columns, moving, scaling
from hasten.augment.op import Count, Drawn, Prob, Size
from hasten.config.schema import Triple
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words, uniform

_FIRST = 1


def _axis(axis: int, spatial_dims: int) -> int:
    """Position among D, H, W of a spatial axis as MONAI counts it: 0 is the first of the image, -1 its last."""
    return axis % spatial_dims + 3 - spatial_dims


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip(SpatialOperation):
    """MONAI's RandFlip: all the axes together (None: every axis). `drawn` is empty."""

    spatial_axis: tuple[int, ...] | None = None

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        return {"sign": _signs(key, self.spatial_axis, spatial_dims)}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        return scaling(drawn["sign"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirror(SpatialOperation):
    """nnU-Net's mirroring: each of the axes by itself, with probability 0.5. `drawn`: sign (B, 3), 1 or -1."""

    prob: Prob = 1.0
    spatial_axis: tuple[int, ...] = (0, 1, 2)

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        whole = _signs(key, tuple(axis for axis in self.spatial_axis if axis < spatial_dims), spatial_dims)
        return {"sign": torch.where(uniform(key, _FIRST, 3) < 0.5, whole, torch.ones_like(whole))}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        return scaling(drawn["sign"])


@dataclass(frozen=True, kw_only=True, slots=True)
class AxisFlip(SpatialOperation):
    """MONAI's RandAxisFlip: one axis, drawn evenly. `drawn`: axis (B,) int64 among the spatial axes."""

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        return {"axis": _number(key, spatial_dims)}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        place = torch.arange(3, device=drawn["axis"].device)
        return scaling(1.0 - 2.0 * (place == drawn["axis"][:, None] + 3 - spatial_dims).to(torch.float32))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotate90(SpatialOperation):
    """MONAI's RandRotate90: 1 to max_k quarter turns in the plane of two equally long axes. `drawn`: k (B,) int64."""

    max_k: Count = 3
    spatial_axes: tuple[int, int] = (0, 1)

    def check(self) -> None:
        if len(set(self.spatial_axes)) != 2:
            raise ValueError(f"Rotate90: spatial_axes={self.spatial_axes}; name two axes")

    def out_size(self, size: Triple) -> Triple:
        # Of a flat image, D is not among the axes unless one of them can only be 3-D's.
        dims = 2 if size[0] == 1 and max(self.spatial_axes) < 2 else 3
        first, second = (size[_axis(axis, dims)] for axis in self.spatial_axes)
        if first != second:
            raise ValueError(
                f"Rotate90: spatial_axes={self.spatial_axes} are {first} and {second} voxels long; a "
                "quarter turn would change the shape of some samples and not of others; crop these axes to one length"
            )
        return size

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        return {"k": 1 + _number(key, self.max_k)}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        turns = drawn["k"] % 4
        device = turns.device
        cos = constant((1.0, 0.0, -1.0, 0.0), device)[turns]
        sin = constant((0.0, 1.0, 0.0, -1.0), device)[turns]
        first, second = (_axis(axis, spatial_dims) for axis in self.spatial_axes)
        unit = torch.eye(3, device=device)
        fixed = 3 - first - second

        def place(row: int, column: int, value: Tensor) -> Tensor:
            return value[:, None, None] * (unit[row][:, None] * unit[column])

        one = torch.ones_like(cos)
        straight = place(fixed, fixed, one) + place(first, first, cos) + place(second, second, cos)
        linear = straight + place(first, second, sin) - place(second, first, sin)
        return Map(linear, torch.zeros(turns.shape[0], 3, device=device))


@dataclass(frozen=True, kw_only=True, slots=True)
class Resize(Interpolation):
    """MONAI's Resize to a fixed size, without anti-aliasing. Always applied; `drawn` is empty.

    Half-pixel centres for images and labels: MONAI's `nearest` takes the voxel before (its `nearest-exact` agrees).
    """

    prob: Prob = 1.0
    spatial_size: tuple[int, ...] = ()
    padding_mode: str = "border"

    def check(self) -> None:
        if len(self.spatial_size) not in (2, 3) or min(self.spatial_size) < 1:
            raise ValueError(f"Resize: spatial_size={self.spatial_size}; write (H, W) or (D, H, W), each at least 1")

    def out_size(self, size: Triple) -> Triple:
        if len(self.spatial_size) == 2:
            return (1, self.spatial_size[0], self.spatial_size[1])
        return (self.spatial_size[0], self.spatial_size[1], self.spatial_size[2])

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        return {"factor": (columns(size, key.device) / columns(self.out_size(size), key.device)).expand(len(key), 3)}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        return scaling(drawn["factor"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut(SpatialOperation):
    """A smaller patch out of the patch: its middle (MONAI's CenterSpatialCrop) or, `random`, any place of it evenly.

    Whole voxels, so that nothing is interpolated; what is cut away is never computed. A side that is shorter already
    stays, as in MONAI. `drawn`: start (B, 3) int64.
    """

    prob: Prob = 1.0
    size: Size
    random: bool = False

    def out_size(self, size: Triple) -> Triple:
        depth, height, width = (min(length, side) for length, side in zip(self.size, size, strict=True))
        return depth, height, width

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        out = self.out_size(size)
        if self.random:
            room = constant(tuple(side - length + 1 for side, length in zip(size, out, strict=True)), key.device)
            return {"start": below(random_words(key, _FIRST, 3), room)}
        middle = constant(tuple(side // 2 - length // 2 for side, length in zip(size, out, strict=True)), key.device)
        return {"start": middle.expand(key.shape[0], 3)}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        start = drawn["start"].to(torch.float32)
        slack = columns(size, start.device) - columns(self.out_size(size), start.device)
        return moving(start - slack / 2)


def _signs(key: Tensor, axes: tuple[int, ...] | None, spatial_dims: int) -> Tensor:
    """(B, 3): -1 for the axes, 1 for the others."""
    chosen = {_axis(axis, spatial_dims) for axis in (range(spatial_dims) if axes is None else axes)}
    row = constant(tuple(-1.0 if axis in chosen else 1.0 for axis in range(3)), key.device)
    return row.expand(key.shape[0], 3)


def _number(key: Tensor, bound: int) -> Tensor:
    """(B,) int64 in [0, bound)."""
    words = random_words(key, _FIRST, 1)[:, 0]
    return below(words, torch.full((), bound, dtype=torch.int64, device=key.device))
