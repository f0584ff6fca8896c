"""The affine of a run, in mm. Those that are MONAI's or nnU-Net's are tested beside the other maps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from monai.transforms import Affine as MonaiAffine
from scipy import stats
from torch import Tensor

from hasten.augment.affine import PhysicalAffine
from hasten.augment.maps import Map
from hasten.augment.read import coordinates_of
from tests.augment.test_maps import keys, plain, smooth, warped

Spacing = tuple[float, float, float]
SIZE = (9, 8, 7)


def affine(**fields: Any) -> PhysicalAffine:
    """The identity, but for what is given."""
    return PhysicalAffine(**{"prob": 1.0, "rotate_deg": (0.0,) * 3, "zoom": (1.0, 1.0), **fields})


def matrices(count: int, spatial_dims: int = 3, **fields: Any) -> Tensor:
    op = affine(**fields)
    result = op.map(op.draw(keys(count), SIZE, spatial_dims), SIZE, spatial_dims)
    assert not result.shift.any()
    return result.linear


def uniform_between(values: Tensor, low: float, high: float) -> bool:
    return stats.kstest((values.double().numpy() - low) / (high - low), "uniform").pvalue > 0.001


def test_the_zoom_is_uniform() -> None:
    zoom = matrices(20_000, zoom=(0.8, 1.25))
    assert uniform_between(1 / zoom[:, 0, 0], 0.8, 1.25)
    assert torch.equal(zoom[:, 0, 0], zoom[:, 2, 2])


def test_constant_strengths_give_the_exact_identity() -> None:
    for dims in (2, 3):
        result = matrices(50, dims, spacing=(3.1, 0.7, 1.3))
        assert torch.equal(result, torch.eye(3).expand(50, 3, 3))


def test_rotation_keeps_lengths_in_mm() -> None:
    spacing = torch.tensor([3.0, 0.7, 1.1])
    result = matrices(100, spacing=tuple(spacing.tolist()), rotate_deg=(40.0, 40.0, 40.0))
    in_mm = result * spacing[:, None] / spacing
    assert torch.allclose(in_mm @ in_mm.transpose(1, 2), torch.eye(3).expand(100, 3, 3), atol=1e-5)


def test_two_dimensions_turn_in_the_plane_alone() -> None:
    result = matrices(100, 2, rotate_deg=(40.0, 40.0, 40.0), zoom=(0.5, 2.0))
    assert (result[:, 0] == torch.tensor([1.0, 0.0, 0.0])).all()
    assert (result[:, 1:, 0] == 0).all()
    assert len(result[:, 1, 2].unique()) == 100


def test_coordinates_of_the_identity_are_whole_numbers() -> None:
    grid = torch.meshgrid(*[torch.arange(float(side)) for side in (4, 5, 6)], indexing="ij")
    for flip in (1.0, -1.0):
        matrix = torch.eye(3)[None] * torch.tensor([1.0, flip, 1.0])
        d, h, w = coordinates_of(Map(matrix, torch.zeros(1, 3)), (4, 5, 6), (4, 5, 6))
        assert torch.equal(d.expand(1, 4, 5, 6)[0], grid[0])
        assert torch.equal(h.expand(1, 4, 5, 6)[0], grid[1] if flip == 1 else 4 - grid[1])
        assert torch.equal(w.expand(1, 4, 5, 6)[0], grid[2])


@pytest.mark.parametrize(
    ("rotate", "zoom"),
    [
        ((30.0, 0.0, 0.0), (1.0, 1.0)),
        ((0.0, 30.0, 0.0), (1.0, 1.0)),
        ((0.0, 0.0, 30.0), (1.0, 1.0)),
        ((0.0, 0.0, 0.0), (0.6, 1.7)),
        ((25.0, 25.0, 25.0), (0.8, 1.2)),
    ],
)
@pytest.mark.parametrize("dims", [2, 3])
def test_agrees_with_affine_of_monai(rotate: Spacing, zoom: tuple[float, float], dims: int) -> None:
    """Our angles are its `rotate_params`, in sign and order (about D, then H, then W); its scale is one over our zoom.

    Shear is not compared: MONAI 1.6 multiplies six single-axis shears, ours is one matrix with six coefficients.
    """
    image, op = smooth((1, *SIZE[3 - dims :])), affine(rotate_deg=rotate, zoom=zoom)
    size = SIZE if dims == 3 else (1, *SIZE[1:])
    for seed in range(4):
        drawn = op.draw(keys(1, seed), size, dims)
        angles = drawn["rotate"][0].tolist()
        theirs = MonaiAffine(
            rotate_params=angles if dims == 3 else angles[0], scale_params=[1 / drawn["zoom"].item()] * dims,
            mode="bilinear", padding_mode="zeros", image_only=True,
        )  # fmt: skip
        assert (warped(image, op.map(drawn, size, dims)) - plain(theirs(image))).abs().max() < 2e-5
        assert max(map(abs, angles)) <= math.radians(max(rotate)) + 1e-6
