"""Flip, rotation, scaling and shear as one matrix per sample, and the source coordinate of every output voxel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hasten.config.schema import SampleConfig
from hasten.sample.constant import constant
from hasten.sample.random import uniform, uniform_in

_FLIP, _USE, _ROTATE, _SCALE, _SHEAR = 0x21, 0x22, 0x23, 0x24, 0x25


def affine_matrix(key: Tensor, config: SampleConfig, spacing: tuple[float, float, float], spatial_dims: int) -> Tensor:
    """(B, 3, 3) float32: offset from the patch centre in output voxels to offset in source voxels.

    Rotation, scaling and shear act in mm (`spacing` (D, H, W)), so that anisotropic voxels are not distorted. Samples
    that draw neither a flip nor an affine get the exact identity. key: (B, 2).
    """
    use = uniform(key, _USE, 1) < config.affine_prob
    limit = (math.radians(config.rotate_deg[0]), math.radians(config.rotate_deg[1]), math.radians(config.rotate_deg[2]))
    if spatial_dims == 2:
        limit = (limit[0], 0.0, 0.0)
    angle = (uniform(key, _ROTATE, 3) * 2 - 1) * constant(limit, key.device)
    zoom = uniform_in(key, _SCALE, *config.scale_range)[:, :, None]
    shear = (uniform(key, _SHEAR, 6) * 2 - 1) * config.shear
    matrix = multiply(rotation(angle), _shear(shear, spatial_dims)) / zoom
    identity = torch.eye(3, device=key.device).expand_as(matrix)
    if spatial_dims == 2:
        matrix = torch.cat([identity[:, :1], matrix[:, 1:]], dim=1)
    mm = constant(tuple(map(float, spacing)), key.device)
    matrix = matrix * mm / mm[:, None]
    matrix = torch.where(use[:, :, None], matrix, identity)
    flip_prob = constant(tuple(map(float, config.flip_prob or (0.0, 0.0, 0.0))), key.device)
    sign = 1.0 - 2.0 * (uniform(key, _FLIP, 3) < flip_prob).to(torch.float32)
    return matrix * sign[:, None, :]


def rotation(angle: Tensor) -> Tensor:
    """(B, 3, 3) rotation about D, then H, then W. angle: (B, 3) radians."""
    cos, sin = torch.cos(angle), torch.sin(angle)
    one, zero = torch.ones_like(cos[:, 0]), torch.zeros_like(cos[:, 0])

    def matrix(*entries: Tensor) -> Tensor:
        return torch.stack(entries, dim=1).view(-1, 3, 3)

    about_d = matrix(one, zero, zero, zero, cos[:, 0], -sin[:, 0], zero, sin[:, 0], cos[:, 0])
    about_h = matrix(cos[:, 1], zero, sin[:, 1], zero, one, zero, -sin[:, 1], zero, cos[:, 1])
    about_w = matrix(cos[:, 2], -sin[:, 2], zero, sin[:, 2], cos[:, 2], zero, zero, zero, one)
    return multiply(multiply(about_d, about_h), about_w)


def _shear(shear: Tensor, spatial_dims: int) -> Tensor:
    """(B, 3, 3) identity plus six off-diagonal coefficients. shear: (B, 6)."""
    one, zero = torch.ones_like(shear[:, 0]), torch.zeros_like(shear[:, 0])
    a, b, c, d, e, f = shear.unbind(1)
    if spatial_dims == 2:
        a = b = c = e = zero
    return torch.stack([one, a, b, c, one, d, e, f, one], dim=1).view(-1, 3, 3)


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """(B, 3, 3) product as a fixed-order sum: a matrix-product library may add in another order on another device."""
    terms = (left[:, :, :, None] * right[:, None, :, :]).unbind(2)
    return terms[0] + terms[1] + terms[2]


def source_coordinates(matrix: Tensor, patch: tuple[int, int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Source coordinate (D, H, W) of every output voxel, from the start of the patch, each (B, D, H, W) float32.

    matrix: (B, 3, 3).
    """
    axes = [torch.arange(size, device=matrix.device, dtype=torch.float32) - (size - 1) / 2 for size in patch]
    d, h, w = axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :]
    rows = []
    for axis in range(3):
        a, b, c = (matrix[:, axis, column].view(-1, 1, 1, 1) for column in range(3))
        rows.append(a * d + b * h + c * w + (patch[axis] - 1) / 2)
    return rows[0], rows[1], rows[2]
