"""Elastic deformation: a displacement of the places that an image is read at, a cubic B-spline over few control points.

The spline is that of SimpleITK's `BSplineTransform`, laid over the image as its `BSplineTransformInitializer` does, and
that of `scipy.ndimage.map_coordinates` with `order=3, prefilter=False`. Of n control points on an axis, the second lies
an eighth of a voxel before the image, the last but one as far behind it, and the first and the last one farther out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.field import separable
from hasten.augment.maps import Interpolation, Map, identity
from hasten.augment.op import Drawn, RangeFrom0
from hasten.config.schema import Triple
from hasten.sample.random import uniform_in

_MAGNITUDE, _OFFSET = 1, 2
_MARGIN = 0.125
"""Voxels that the initializer of ITK adds at either face."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Elastic(Interpolation):
    """Moves where values are read by a smooth random displacement, as TorchIO's RandomElasticDeformation does.

    `drawn`: offsets (B, 3, gd, gh, gw), voxels along D, H, W at the control points: a magnitude from U(magnitude_range)
    for each sample, times U(-1, 1) for each number. A 2-D image has gd = 1 and no displacement along D. Nothing folds
    while magnitudes stay below 0.4 of the distance of control points, which is about side / (number - 3) voxels.

    The same offsets give the same displacement as in TorchIO. They are drawn differently on purpose: in voxels, not mm;
    with one magnitude a sample, `(m, m)` where it is always m; with borders locked on all axes, not on the first two.
    """

    num_control_points: tuple[int, ...] = (7,)
    """One number for all axes, or one an axis, D first (2-D: H first); at least 4."""
    magnitude_range: RangeFrom0 = (0.0, 7.5)
    """Voxels."""
    locked_borders: int = 0
    """How many layers of control points at each side do not move: with 3, neither does the border of the image."""

    def check(self) -> None:
        points = self.num_control_points
        if len(points) not in (1, 2, 3) or min(points) < 4:
            raise ValueError(f"Elastic: num_control_points={points}; write one for all axes or one an axis, at least 4")
        if self.locked_borders < 0 or 2 * self.locked_borders >= min(points):
            raise ValueError(
                f"Elastic: locked_borders={self.locked_borders} leaves no control point of {points} to move; lock fewer"
            )

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        grid = self._grid(spatial_dims)
        magnitude = uniform_in(key, _MAGNITUDE, *self.magnitude_range)
        count = grid[0] * grid[1] * grid[2]
        moved = (magnitude * uniform_in(key, _OFFSET, -1.0, 1.0, count=3 * count)).view(-1, 3, *grid)
        for axis, points in enumerate(grid):
            if points > 1 and self.locked_borders:
                at = torch.arange(points, device=key.device)
                free = (at >= self.locked_borders) & (at < points - self.locked_borders)
                moved = moved * free.view([points if axis == each else 1 for each in range(3)])
        if spatial_dims == 2:
            moved = torch.cat([torch.zeros_like(moved[:, :1]), moved[:, 1:]], dim=1)
        return {"offsets": moved}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        """The identity, (B, 3, 3) and (B, 3): no part of it is a matrix, `displacement` is all of it."""
        return identity(drawn["offsets"].shape[0], drawn["offsets"].device)

    def displacement(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Tensor:
        """(B, 3, D, H, W) float32 voxels along D, H, W, to be added to the place of each output voxel.

        size: (D, H, W) of the output.
        """
        offsets = drawn["offsets"]
        weights = [bspline(side, points, offsets.device) for side, points in zip(size, offsets.shape[2:], strict=True)]
        return separable(offsets.flatten(0, 1), weights).view(-1, 3, *size)

    def _grid(self, spatial_dims: int) -> Triple:
        points = self.num_control_points
        if len(points) not in (1, spatial_dims):
            raise ValueError(f"Elastic: num_control_points={points} does not fit an image of {spatial_dims} axes")
        each = points * spatial_dims if len(points) == 1 else points
        return (1 if spatial_dims == 2 else each[0], each[-2], each[-1])


def bspline(side: int, points: int, device: torch.device) -> Tensor:
    """(side, points): how much each control point counts at each voxel of an axis. One point: 1 everywhere."""
    if points == 1:
        return torch.ones(side, 1, device=device)
    place = (torch.arange(side, device=device) + (0.5 + _MARGIN)) * ((points - 3) / (side + 2 * _MARGIN)) + 1.0
    far = (place[:, None] - torch.arange(points, device=device)).abs()
    near = 2 / 3 - far * far * (1 - far / 2)
    return torch.where(far < 1, near, (2 - far).clamp(min=0.0) ** 3 / 6)
