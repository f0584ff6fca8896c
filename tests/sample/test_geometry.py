from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from hasten.config.schema import SampleConfig
from hasten.sample import reference
from hasten.sample.geometry import affine_matrix, source_coordinates
from hasten.sample.random import sample_key
from tests.sample.arenas import OFF, program_of, tables_of

Spacing = tuple[float, float, float]


def matrices(
    count: int, *, spacing: Spacing = (1.0, 1.0, 1.0), spatial_dims: int = 3, seed: int = 0, **options: Any
) -> Tensor:
    config = SampleConfig(**{**OFF, "affine_prob": 1.0, "scale_range": (1.0, 1.0), "rotate_deg": (0.0,) * 3, **options})
    key = sample_key(torch.tensor(seed), torch.arange(count))
    return affine_matrix(key, config, spacing, spatial_dims)


def uniform_between(values: Tensor, low: float, high: float) -> bool:
    return stats.kstest((values.double().numpy() - low) / (high - low), "uniform").pvalue > 0.001


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_angles_are_uniform_about_each_axis(axis: int) -> None:
    limits = tuple(30.0 if number == axis else 0.0 for number in range(3))
    found = matrices(20_000, rotate_deg=limits)
    one, two = (axis + 1) % 3, (axis + 2) % 3
    assert uniform_between(torch.rad2deg(torch.atan2(found[:, two, one], found[:, one, one])), -30, 30)
    assert (found[:, axis, axis] == 1).all()
    assert (found[:, axis, one] == 0).all()
    assert torch.allclose(torch.linalg.det(found), torch.ones(20_000), atol=1e-5)


def test_zoom_and_shear_are_uniform() -> None:
    zoom = matrices(20_000, scale_range=(0.8, 1.25))
    assert uniform_between(1 / zoom[:, 0, 0], 0.8, 1.25)
    assert torch.equal(zoom[:, 0, 0], zoom[:, 2, 2])
    shear = matrices(20_000, shear=0.2)
    for row in range(3):
        for column in range(3):
            if row != column:
                assert uniform_between(shear[:, row, column], -0.2, 0.2)


def test_flips_of_the_axes_happen_at_their_rates_and_independently() -> None:
    flips = matrices(20_000, affine_prob=0.0, flip_prob=(0.5, 0.2, 0.0))
    assert torch.equal(flips.abs(), torch.eye(3).expand(20_000, 3, 3))
    along = [(flips[:, axis, axis] < 0) for axis in range(3)]
    assert stats.binomtest(int(along[0].sum()), 20_000, 0.5).pvalue > 0.001
    assert stats.binomtest(int(along[1].sum()), 20_000, 0.2).pvalue > 0.001
    assert stats.binomtest(int((along[0] & along[1]).sum()), 20_000, 0.1).pvalue > 0.001
    assert not along[2].any()


def test_affine_happens_at_its_rate_and_is_the_exact_identity_otherwise() -> None:
    found = matrices(20_000, affine_prob=0.3, rotate_deg=(20.0, 20.0, 20.0), spacing=(3.0, 0.7, 1.1))
    still = (found == torch.eye(3)).all(2).all(1)
    assert stats.binomtest(int(still.sum()), 20_000, 0.7).pvalue > 0.001


def test_constant_strengths_give_the_exact_identity() -> None:
    assert torch.equal(matrices(50, spacing=(3.1, 0.7, 1.3)), torch.eye(3).expand(50, 3, 3))


def test_rotation_keeps_lengths_in_mm() -> None:
    spacing = torch.tensor([3.0, 0.7, 1.1])
    found = matrices(100, spacing=tuple(spacing.tolist()), rotate_deg=(40.0, 40.0, 40.0))
    in_mm = found * spacing[:, None] / spacing
    assert torch.allclose(in_mm @ in_mm.transpose(1, 2), torch.eye(3).expand(100, 3, 3), atol=1e-5)


def test_two_dimensions_turn_in_the_plane_alone() -> None:
    options: dict[str, Any] = {"rotate_deg": (40.0, 40.0, 40.0), "scale_range": (0.5, 2.0), "shear": 0.3}
    found = matrices(100, spatial_dims=2, flip_prob=(0.0, 0.5, 0.5), **options)
    assert (found[:, 0] == torch.tensor([1.0, 0.0, 0.0])).all()
    assert (found[:, 1:, 0] == 0).all()
    assert len(found[:, 1, 2].unique()) == 100


def test_coordinates_of_the_identity_are_whole_numbers() -> None:
    for flip in (1.0, -1.0):
        matrix = torch.eye(3)[None] * torch.tensor([1.0, flip, 1.0])
        d, h, w = source_coordinates(matrix, (4, 5, 6))
        grid = torch.meshgrid(*[torch.arange(float(size)) for size in (4, 5, 6)], indexing="ij")
        assert torch.equal(d[0], grid[0])
        assert torch.equal(h[0], grid[1] if flip == 1 else 4 - grid[1])
        assert torch.equal(w[0], grid[2])


@pytest.mark.parametrize(
    ("rotate", "scale"),
    [
        ((30.0, 0.0, 0.0), (1.0, 1.0)),
        ((0.0, 30.0, 0.0), (1.0, 1.0)),
        ((0.0, 0.0, 30.0), (1.0, 1.0)),
        ((0.0, 0.0, 0.0), (0.6, 1.7)),
        ((25.0, 25.0, 25.0), (0.8, 1.2)),
    ],
)
def test_agrees_with_affine_of_monai(rotate: Spacing, scale: tuple[float, float]) -> None:
    """Our angles are its `rotate_params`, in sign and order (about D, then H, then W); its scale is one over our zoom.

    Shear is not compared: MONAI 1.6 multiplies six single-axis shears, ours is one matrix with six coefficients.
    """
    from monai.transforms import Affine

    image = np.random.default_rng(0).random((1, 9, 8, 7)).astype(np.float32)
    tables = tables_of([image], [np.zeros((9, 8, 7), np.uint8)], 2)
    ours, _ = program_of(tables, (9, 8, 7), affine_prob=1.0, rotate_deg=rotate, scale_range=scale)(0)
    assert (ours - torch.from_numpy(image)).abs().max() > 0.1
    for number in range(4):
        key = reference.sample_key(0, number)
        angles = [math.radians(reference.between(key, 0x23, -rotate[axis], rotate[axis], axis)) for axis in range(3)]
        zoom = reference.between(key, 0x24, *scale)
        theirs = Affine(
            rotate_params=angles,
            scale_params=[1 / zoom] * 3,
            mode="bilinear",
            padding_mode="zeros",
            image_only=True,
        )
        assert (ours[number] - torch.as_tensor(theirs(torch.from_numpy(image)))).abs().max() < 2e-5


def test_agrees_with_affine_of_monai_in_two_dimensions() -> None:
    from monai.transforms import Affine

    image = np.random.default_rng(0).random((1, 1, 9, 8)).astype(np.float32)
    tables = tables_of([image], [np.zeros((1, 9, 8), np.uint8)], 2)
    ours, _ = program_of(tables, (1, 9, 8), affine_prob=1.0, rotate_deg=(40.0, 0.0, 0.0), scale_range=(0.7, 1.5))(0)
    for number in range(4):
        key = reference.sample_key(0, number)
        theirs = Affine(
            rotate_params=math.radians(reference.between(key, 0x23, -40, 40)),
            scale_params=[1 / reference.between(key, 0x24, 0.7, 1.5)] * 2,
            mode="bilinear",
            padding_mode="zeros",
            image_only=True,
        )
        assert (ours[number, :, 0] - torch.as_tensor(theirs(torch.from_numpy(image[0])))).abs().max() < 2e-5
