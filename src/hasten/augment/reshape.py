"""Maps that change the size of a patch or the order of its axes, and a zoom that keeps corners in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.affine import Zoom
from hasten.augment.maps import Interpolation, Map, SpatialOperation, columns, identity, moving
from hasten.augment.op import Drawn, Prob, Size
from hasten.config.schema import Triple
from hasten.sample.constant import constant
from hasten.sample.random import below, random_words

_START = 1


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
        return _triple([min(length, side) for length, side in zip(self.size, size, strict=True)])

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        out = self.out_size(size)
        if self.random:
            room = constant(tuple(side - length + 1 for side, length in zip(size, out, strict=True)), key.device)
            return {"start": below(random_words(key, _START, 3), room)}
        middle = constant(tuple(side // 2 - length // 2 for side, length in zip(size, out, strict=True)), key.device)
        return {"start": middle.expand(key.shape[0], 3)}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        start = drawn["start"].to(torch.float32)
        slack = columns(size, start.device) - columns(self.out_size(size), start.device)
        return moving(start - slack / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recentre(Interpolation):
    """A patch of another size about the same centre, read between voxels where the sides differ by an odd number.

    What MONAI's RandAffine does with a `spatial_size` of its own, whatever it draws. `drawn` is empty but for `like`
    (B,), whose length is the number of samples.
    """

    prob: Prob = 1.0
    size: Size

    def out_size(self, size: Triple) -> Triple:
        return self.size

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        return {"like": torch.zeros_like(key[:, 0])}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        return identity(drawn["like"].shape[0], drawn["like"].device)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reorder(SpatialOperation):
    """Axes in another order, some of them backward: MONAI's Rotate90 and Transpose. `drawn`: like (B,).

    order: axis i of D, H, W of the output is axis order[i] of the input, from its end where `backward` names i.
    """

    prob: Prob = 1.0
    order: Triple = (0, 1, 2)
    backward: tuple[int, ...] = ()

    def check(self) -> None:
        if sorted(self.order) != [0, 1, 2]:
            raise ValueError(f"Reorder: order={self.order}; each of 0, 1, 2 is needed once")

    def out_size(self, size: Triple) -> Triple:
        return _triple([size[axis] for axis in self.order])

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        return {"like": torch.zeros_like(key[:, 0])}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        batch, device = drawn["like"].shape[0], drawn["like"].device
        rows = []
        for axis in range(3):
            out = self.order.index(axis)
            sign = -1.0 if out in self.backward else 1.0
            rows.append(constant(tuple(sign if column == out else 0.0 for column in range(3)), device))
        return Map(torch.stack(rows).expand(batch, 3, 3), torch.zeros(batch, 3, device=device))


@dataclass(frozen=True, kw_only=True, slots=True)
class AlignedZoom(Zoom):
    """`Zoom` with the centres of the corner voxels in place instead of their outer corners: `align_corners=True`."""

    def _factor(self, sides: Tensor, zoomed: Tensor) -> Tensor:
        return (sides - 1) / (zoomed - 1).clamp(min=1.0)


def quarter_turns(k: int, first: int, second: int) -> tuple[Triple, tuple[int, ...]]:
    """`order` and `backward` of `Reorder` for k turns from the first towards the second of D, H, W: torch.rot90."""
    order = [0, 1, 2]
    if k % 2:
        order[first], order[second] = second, first
    backward: dict[int, tuple[int, ...]] = {0: (), 1: (first,), 2: (first, second), 3: (second,)}
    return _triple(order), backward[k % 4]


def _triple(values: list[int]) -> Triple:
    return values[0], values[1], values[2]
