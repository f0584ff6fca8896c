"""Affine maps from output voxels to the input, which neighbouring operations compose into one.

A map takes an offset from the centre of the output to an offset from the centre of the input, in voxels along D, H, W:
`linear @ offset + shift`. About centres, a flip or a quarter turn is exact in float32 whatever the size. 2-D images
have D = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from hasten.augment.op import Drawn, Operation
from hasten.config.schema import Triple
from hasten.sample.constant import constant


class Map(NamedTuple):
    """Affine maps of B samples, in voxels from the centre, from places in the output to those in the input."""

    linear: Tensor
    """(B, 3, 3) float32."""
    shift: Tensor
    """(B, 3) float32, voxels of the input."""


@runtime_checkable
class MapOp(Protocol):
    """A spatial operation. The draws are the same for all `keys`."""

    @property
    def keys(self) -> tuple[str, ...]: ...

    @property
    def prob(self) -> float: ...

    @property
    def mode(self) -> tuple[str, ...]:
        """How each key is read between voxels, `bilinear` or `nearest`; () for an operation that never lies between."""

    @property
    def padding_mode(self) -> str:
        """Padding mode: `zeros`, `border` or `reflection`; "" for an operation that never reads outside."""

    def out_size(self, size: Triple) -> Triple:
        """(D, H, W) of the output, the same for every sample. Raises ValueError where it can't be."""

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        """Numbers for B samples. key: (B, 2) int64 words; size: (D, H, W) of the input."""

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        """Maps of B samples, (B, 3, 3) and (B, 3) float32. drawn: as `draw` returns it; size: (D, H, W)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SpatialOperation(Operation):
    """What Hasten's own spatial operations share: whole voxels move, and the size stays.

    Their `draw` and `map` are as in `MapOp`.
    """

    keys: tuple[str, ...] = ("image", "label")
    mode: tuple[str, ...] = ()
    padding_mode: str = ""

    def out_size(self, size: Triple) -> Triple:
        return size


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpolation(SpatialOperation):
    """A spatial operation that reads between voxels."""

    mode: tuple[str, ...] = ("bilinear", "nearest")
    padding_mode: str = "zeros"


def identity(batch: int, device: torch.device) -> Map:
    return Map(torch.eye(3, device=device).expand(batch, 3, 3), torch.zeros(batch, 3, device=device))


def scaling(factor: Tensor) -> Map:
    """input offset = factor * output offset. factor: (B, 3)."""
    return Map(torch.diag_embed(factor), torch.zeros_like(factor))


def moving(shift: Tensor) -> Map:
    """input offset = output offset + shift. shift: (B, 3)."""
    return Map(torch.eye(3, device=shift.device).expand(shift.shape[0], 3, 3), shift)


def compose(first: Map, then: Map) -> Map:
    """The map of an image that goes through `first` and then through `then`."""
    moved = (first.linear * then.shift[:, None, :]).unbind(2)
    return Map(multiply(first.linear, then.linear), moved[0] + moved[1] + moved[2] + first.shift)


def where(use: Tensor, one: Map, other: Map) -> Map:
    """`one` for the samples that `use` (B,) names, `other` for the rest."""
    return Map(
        torch.where(use[:, None, None], one.linear, other.linear), torch.where(use[:, None], one.shift, other.shift)
    )


def columns(size: Triple, device: torch.device) -> Tensor:
    """(3,) float32."""
    return constant((float(size[0]), float(size[1]), float(size[2])), device)


def rotation(angle: Tensor, *, reverse: bool = False) -> Tensor:
    """(B, 3, 3) product of the rotations about D, H, W in this order, or in reverse. angle: (B, 3) radians."""
    (cos_d, cos_h, cos_w), sines = torch.cos(angle).unbind(1), torch.sin(angle)
    (sin_d, sin_h, sin_w), (neg_d, neg_h, neg_w) = sines.unbind(1), (-sines).unbind(1)
    one, zero = torch.ones_like(cos_d), torch.zeros_like(cos_d)
    about_d = (one, zero, zero, zero, cos_d, neg_d, zero, sin_d, cos_d)
    about_h = (cos_h, zero, sin_h, zero, one, zero, neg_h, zero, cos_h)
    about_w = (cos_w, neg_w, zero, sin_w, cos_w, zero, zero, zero, one)
    first, second, third = torch.stack((*about_d, *about_h, *about_w), dim=1).view(-1, 3, 3, 3).unbind(1)
    if reverse:
        first, third = third, first
    return multiply(multiply(first, second), third)


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """(B, 3, 3) product as a fixed-order sum: a matrix-product library may add in another order on another device."""
    terms = (left[:, :, :, None] * right[:, None, :, :]).unbind(2)
    return terms[0] + terms[1] + terms[2]
