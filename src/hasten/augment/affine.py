"""Rotation, zoom, shear and translation, with the definitions of MONAI's transforms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.augment.maps import Interpolation, Map, columns, compose, moving, multiply, rotation, scaling
from hasten.augment.op import Drawn, Prob, Range, RangeAbove0, Ranges, check_range
from hasten.config.schema import Triple
from hasten.sample.constant import constant
from hasten.sample.random import uniform, uniform_in

_ROTATE, _SHEAR, _TRANSLATE, _SCALE, _ZOOM = 1, 2, 3, 4, 5
_SHEAR_PLACES = ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Affine(Interpolation):
    """MONAI's RandAffine (shear as of its release 1.6) and RandRotate.

    Rotation, then shear, translation and scaling about the centre. Each range is one (low, high) an axis, D first (2-D:
    H first; rotation: the first alone). `drawn`: rotate (B, 3) radians, shear (B, 6), translate (B, 3) voxels, scale
    (B, 3) factors from output to input, so that above 1 makes things smaller, as MONAI's does.
    """

    rotate_range: Ranges = ()
    shear_range: Ranges = ()
    translate_range: Ranges = ()
    scale_range: Ranges = ()
    """Added to 1."""

    def check(self) -> None:
        for low, _ in self.scale_range:
            if low <= -1:
                raise ValueError(f"Affine: scale_range={self.scale_range}; 1 is added to it, and must leave it above 0")

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        rotate = self.rotate_range if spatial_dims == 3 else self.rotate_range[:1]
        shear = (
            self.shear_range
            if spatial_dims == 3
            else (*[(0.0, 0.0)] * 3, *self.shear_range[:1], (0.0, 0.0), *self.shear_range[1:2])
        )
        return {
            "rotate": _between(key, _ROTATE, rotate, 3),
            "shear": _between(key, _SHEAR, shear, 6),
            "translate": _between(key, _TRANSLATE, _axes(self.translate_range, spatial_dims), 3),
            "scale": 1.0 + _between(key, _SCALE, _axes(self.scale_range, spatial_dims), 3),
        }

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        turned = Map(rotation(drawn["rotate"]), torch.zeros_like(drawn["translate"]))
        sheared = Map(_sheared(drawn["shear"]), torch.zeros_like(drawn["translate"]))
        return compose(compose(compose(turned, sheared), moving(drawn["translate"])), scaling(drawn["scale"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Zoom(Interpolation):
    """MONAI's RandZoom with `keep_size`: above 1 enlarges. `drawn`: zoom (B, 3).

    min_zoom, max_zoom: one number for all axes, or one an axis (3-D with two: the first for D and H, as in MONAI).
    align_corners: keeps the centres of the corner voxels in place, not their outer corners. The zoomed size is a whole
    number of voxels, and what is cut away or padded lies half on each side, as in MONAI.
    """

    min_zoom: tuple[float, ...] = (0.9,)
    max_zoom: tuple[float, ...] = (1.1,)
    padding_mode: str = "border"
    align_corners: bool = False

    def check(self) -> None:
        if len(self.min_zoom) != len(self.max_zoom):
            raise ValueError(f"Zoom: min_zoom={self.min_zoom} and max_zoom={self.max_zoom} differ in length")
        for low, high in zip(self.min_zoom, self.max_zoom, strict=True):
            check_range("Zoom", "(min_zoom, max_zoom)", (low, high), above=0.0)

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        ranges = tuple(zip(self.min_zoom, self.max_zoom, strict=True))
        if len(ranges) == 1:
            one = _between(key, _ZOOM, ranges, 1)
            zoom = one.expand(-1, 3) if spatial_dims == 3 else torch.cat([torch.ones_like(one), one, one], dim=1)
            return {"zoom": zoom.contiguous()}
        if spatial_dims == 3 and len(ranges) == 2:
            two = _between(key, _ZOOM, ranges, 2)
            return {"zoom": torch.cat([two[:, :1], two], dim=1)}
        return {"zoom": _between(key, _ZOOM, _axes(ranges, spatial_dims, rest=(1.0, 1.0)), 3)}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        sides = columns(size, drawn["zoom"].device)
        zoomed = torch.floor(sides * drawn["zoom"] * (1 + 1e-6)).clamp(min=1.0)
        # Cutting takes the middle voxel for the middle voxel, padding puts the smaller half in front.
        difference = zoomed - sides
        cut = torch.floor(zoomed / 2) - torch.floor(sides / 2)
        start = torch.where(difference >= 0, cut, -torch.floor(-difference / 2))
        factor = (sides - 1) / (zoomed - 1).clamp(min=1.0) if self.align_corners else sides / zoomed
        return compose(scaling(factor), moving(start - difference / 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spatial(Interpolation):
    """nnU-Net's rotation and scaling: each happens or not by itself, scaling by one factor an axis or one for all.

    rotate: (low, high) radians for each axis (2-D uses the first); scale: from U(scale), above 1 makes things smaller
    (as in batchgeneratorsv2). in_plane: of a 3-D image, H and W only, all slices alike (nnU-Net's dummy 2-D
    augmentation). `drawn`: rotate (B, 3), scale (B, 3).
    """

    prob: Prob = 1.0
    rotate_prob: Prob = 0.2
    rotate: Range = (-0.5235987755982988, 0.5235987755982988)
    scale_prob: Prob = 0.2
    scale: RangeAbove0 = (0.7, 1.4)
    in_plane: bool = False

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        dims = 2 if self.in_plane else spatial_dims
        turns = uniform(key, _SHEAR, 1) < self.rotate_prob
        scales = uniform(key, _TRANSLATE, 1) < self.scale_prob
        angle = _between(key, _ROTATE, (self.rotate,) * (3 if dims == 3 else 1), 3)
        factor = _between(key, _SCALE, (self.scale,), 1)
        flat = constant((float(dims == 2), 0.0, 0.0), key.device) > 0  # D stays
        scale = torch.where(scales & ~flat, factor, torch.ones_like(factor))
        return {"rotate": torch.where(turns, angle, torch.zeros_like(angle)), "scale": scale}

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        turned = rotation(drawn["rotate"], reverse=True)
        return compose(Map(turned, torch.zeros_like(drawn["rotate"])), scaling(drawn["scale"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class PhysicalAffine(Interpolation):
    """Rotation and one zoom for all axes, in mm, so that anisotropic voxels are not distorted.

    rotate_deg: largest angle about D, H, W in degrees, drawn from U(-a, a) (2-D uses the first); zoom: from U(zoom),
    above 1 enlarges; spacing: voxel size (D, H, W). `drawn`: rotate (B, 3) radians, zoom (B, 1).
    """

    prob: Prob = 0.5
    rotate_deg: tuple[float, float, float] = (15.0, 15.0, 15.0)
    zoom: RangeAbove0 = (0.85, 1.2)
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def check(self) -> None:
        if min(self.spacing) <= 0:
            raise ValueError(f"PhysicalAffine: spacing={self.spacing}; each must lie above 0")

    def draw(self, key: Tensor, size: Triple, spatial_dims: int) -> Drawn:
        turns = tuple((-math.radians(each), math.radians(each)) for each in self.rotate_deg)
        return {
            "rotate": _between(key, _ROTATE, turns if spatial_dims == 3 else turns[:1], 3),
            "zoom": _between(key, _ZOOM, (self.zoom,), 1),
        }

    def map(self, drawn: Mapping[str, Tensor], size: Triple, spatial_dims: int) -> Map:
        matrix = rotation(drawn["rotate"]) / drawn["zoom"][:, :, None]
        if spatial_dims == 2:
            unit = torch.eye(3, device=matrix.device)[:1].expand(matrix.shape[0], 1, 3)
            matrix = torch.cat([unit, matrix[:, 1:]], dim=1)
        mm = constant(self.spacing, matrix.device)
        return Map(matrix * mm / mm[:, None], torch.zeros_like(drawn["rotate"]))


def _axes(ranges: tuple[Range, ...], spatial_dims: int, rest: Range = (0.0, 0.0)) -> tuple[Range, ...]:
    return (rest, *ranges[:2]) if spatial_dims == 2 else ranges


def _between(key: Tensor, stream: int, ranges: tuple[Range, ...], count: int) -> Tensor:
    """(B, count) from the ranges in turn; 0 beyond them."""
    padded = (*ranges[:count], *[(0.0, 0.0)] * (count - len(ranges)))
    if len(set(padded)) == 1:
        return uniform_in(key, stream, *padded[0], count=count)
    low = constant(tuple(float(first) for first, _ in padded), key.device)
    width = constant(tuple(float(last - first) for first, last in padded), key.device)
    return low + width * uniform(key, stream, count)


def _sheared(coefficients: Tensor) -> Tensor:
    """(B, 3, 3): one elementary shear after the other, the first applied first."""
    unit = torch.eye(3, device=coefficients.device)
    matrix = unit.expand(coefficients.shape[0], 3, 3)
    for number, (row, column) in enumerate(_SHEAR_PLACES):
        place = unit[row][:, None] * unit[column]
        matrix = multiply(unit + coefficients[:, number, None, None] * place, matrix)
    return matrix
