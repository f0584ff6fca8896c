"""The numbers that operations draw: evenly from their ranges, and each for itself. One row a number."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import chisquare, kstest
from torch import Tensor

from hasten.augment.affine import Affine, PhysicalAffine, Zoom
from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import AdjustContrast, Contrast, Gamma
from hasten.augment.grid import AxisFlip, Rotate90
from hasten.augment.intensity import (
    Brightness,
    ScaleIntensity,
    ShiftIntensity,
)
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.noise import GaussianNoise
from hasten.augment.smooth import Blur, GaussianSmooth
from hasten.sample.random import sample_key
from tests.augment.test_value_ops import keys

COUNT = 4000
KEY = sample_key(torch.tensor(0), torch.arange(COUNT))
PLANE, VOLUME, SIZE = (2, 8, 8), (2, 8, 8, 8), (12, 12, 12)
FLAT = (3, 8, 8)


def of(op: Any, name: str, shape: tuple[int, ...] = PLANE) -> Tensor:
    return op.draw(KEY, shape)[name]


def of_map(op: Any, name: str) -> Tensor:
    return op.draw(KEY, SIZE, 3)[name]


def turned(axis: int) -> Tensor:
    """Degrees about one axis, of the matrices."""
    op = PhysicalAffine(prob=1.0, rotate_deg=tuple(30.0 * (each == axis) for each in range(3)), zoom=(1.0, 1.0))
    linear = op.map(op.draw(KEY, SIZE, 3), SIZE, 3).linear
    one, two = (axis + 1) % 3, (axis + 2) % 3
    assert (linear[:, axis, axis] == 1).all()
    assert (linear[:, axis, one] == 0).all()
    assert torch.allclose(torch.linalg.det(linear), torch.ones(COUNT), atol=1e-5)
    return torch.rad2deg(torch.atan2(linear[:, two, one], linear[:, one, one]))


HALVES = Gamma(gamma=(0.7, 3.0)), Contrast(contrast_range=(0.7, 3.0)), Brightness(multiplier_range=(0.7, 3.0))
COLOURS = ColorJitter(brightness=0.3, contrast=(0.5, 2.0), saturation=1.5, hue=0.1)
TURN = Affine(rotate_range=((-0.5, 0.2), (0.1, 0.3), (-1, 1)))
MOVES = Affine(translate_range=((-4, 2),) * 3, scale_range=((-0.3, 0.1),) * 3, shear_range=((-0.1, 0.2),) * 6)
ZOOM = Zoom(min_zoom=(0.7, 0.8, 0.9), max_zoom=(1.1, 1.2, 1.3))

UNIFORM: dict[str, tuple[Callable[[], Tensor], float, float]] = {
    "adjust contrast": (lambda: of(AdjustContrast(), "gamma"), 0.5, 4.5),
    "gamma": (lambda: of(Gamma(gamma=(0.6, 0.9), around_one=False), "gamma")[:, 1], 0.6, 0.9),
    "shift": (lambda: of(ShiftIntensity(offsets=(-3.0, 5.0)), "offset"), -3, 5),
    "shift by channel": (lambda: of(ShiftIntensity(offsets=(-3.0, 5.0), channel_wise=True), "offset"), -3, 5),
    "scale": (lambda: of(ScaleIntensity(factors=(0.1, 0.4)), "factor"), 0.1, 0.4),
    "brightness": (lambda: of(Brightness(multiplier_range=(0.5, 2), around_one=False), "multiplier"), 0.5, 2),
    "brightness above 1": (lambda: of(Brightness(multiplier_range=(1.5, 3.0)), "multiplier"), 1.5, 3.0),
    **{
        f"smooth {axis}": (
            lambda axis=axis: of(
                GaussianSmooth(sigma_x=(0, 1), sigma_y=(1, 3), sigma_z=(0.5, 0.6)), "sigma", VOLUME
            )[:, axis],
            *limits,
        )
        for axis, limits in enumerate([(0, 1), (1, 3), (0.5, 0.6)])
    },
    "blur": (lambda: of(Blur(blur_sigma=(0.5, 2.0)), "sigma", VOLUME), 0.5, 2.0),
    "low resolution": (lambda: of(SimulateLowResolution(zoom_range=(0.3, 0.8)), "zoom", VOLUME)[..., 0], 0.3, 0.8),
    "noise": (lambda: of(GaussianNoise(std=(0.4, 0.9)), "std"), 0.4, 0.9),
    **{
        name: (lambda name=name: of(COLOURS, name, FLAT), *limits)
        for name, limits in {
            "brightness": (0.7, 1.3), "contrast": (0.5, 2.0), "saturation": (0.0, 2.5), "hue": (-0.1, 0.1)
        }.items()
    },
    **{
        f"rotate {axis}": (lambda axis=axis: of_map(TURN, "rotate")[:, axis], *limits)
        for axis, limits in enumerate([(-0.5, 0.2), (0.1, 0.3), (-1, 1)])
    },
    "translate": (lambda: of_map(MOVES, "translate"), -4, 2),
    "scale of a map": (lambda: of_map(MOVES, "scale"), 0.7, 1.1),
    "shear": (lambda: of_map(MOVES, "shear"), -0.1, 0.2),
    **{
        f"zoom {axis}": (lambda axis=axis: of_map(ZOOM, "zoom")[:, axis], low, low + 0.4)
        for axis, low in enumerate((0.7, 0.8, 0.9))
    },
    **{f"degrees about {axis}": (lambda axis=axis: turned(axis), -30, 30) for axis in range(3)},
}  # fmt: skip


@pytest.mark.parametrize("row", UNIFORM)
def test_a_number_is_drawn_evenly_from_its_range(row: str) -> None:
    make, low, high = UNIFORM[row]
    values = make()
    assert len(values) == COUNT
    for column in values.double().reshape(COUNT, -1).T.numpy():
        assert kstest(column, "uniform", args=(low, high - low)).pvalue > 1e-3


@pytest.mark.parametrize("op", HALVES, ids=lambda op: type(op).__name__)
def test_factors_lie_below_and_above_one_by_halves(op: Any) -> None:
    drawn = next(iter(op.draw(KEY, PLANE).values()))[:, 1]
    below, above = drawn[drawn < 1], drawn[drawn >= 1]
    assert abs(len(below) / COUNT - 0.5) < 0.03
    assert kstest(below.numpy(), "uniform", args=(0.7, 0.3)).pvalue > 1e-3
    assert kstest(above.numpy(), "uniform", args=(1, 2)).pvalue > 1e-3


COUNTED: dict[str, tuple[Callable[[], Tensor], int]] = {
    "quarter turns": (lambda: of_map(Rotate90(max_k=3), "k") - 1, 3),
    "axis": (lambda: of_map(AxisFlip(), "axis"), 3),
}


@pytest.mark.parametrize("row", COUNTED)
def test_each_of_some_is_as_likely(row: str) -> None:
    make, number = COUNTED[row]
    counts = torch.bincount(make().flatten(), minlength=number)
    assert len(counts) == number
    assert chisquare(counts.numpy()).pvalue > 1e-3


def test_every_order_of_colours_is_as_likely() -> None:
    order = of(ColorJitter(hue=0.1), "order", FLAT)
    assert order.dtype == torch.int64
    counts = [int((order == torch.tensor(each)).all(1).sum()) for each in permutations(range(4))]
    assert sum(counts) == COUNT
    assert chisquare(counts).pvalue > 1e-3


TOGETHER: dict[str, Callable[[], list[Tensor]]] = {
    "channels": lambda: [of(ShiftIntensity(offsets=(0.0, 1.0), channel_wise=True), "offset")],
    "smooth": lambda: [of(GaussianSmooth(), "sigma", VOLUME)],
    "blur": lambda: [of(Blur(), "sigma", VOLUME)],
    "colours": lambda: [of(COLOURS, name, FLAT) for name in ("brightness", "contrast", "saturation", "hue")],
}


@pytest.mark.parametrize("row", TOGETHER)
def test_numbers_are_independent(row: str) -> None:
    columns = torch.cat([each.double().reshape(COUNT, -1) for each in TOGETHER[row]()], dim=1)
    assert (torch.corrcoef(columns.T) - torch.eye(columns.shape[1])).abs().max() < 0.08


@pytest.mark.parametrize(
    ("made", "name", "chance"),
    [
        (Blur(p_per_channel=0.3), "sigma", 0.3),
        (Brightness(p_per_channel=0.3, synchronize_channels=True), "multiplier", 0.3),
        (Gamma(p_per_channel=0.4, synchronize_channels=True), "gamma", 0.4),
        (Gamma(p_invert_image=0.2), "invert", 0.2),
        (Gamma(p_retain_stats=0.6), "retain", 0.6),
    ],
)
def test_channels_are_chosen_by_their_probability_one_by_one(made: Any, name: str, chance: float) -> None:
    drawn = of(made, name, FLAT)
    drawn = drawn[..., 0] if drawn.ndim == 3 else drawn
    chosen = drawn if drawn.dtype == torch.bool else drawn != (0.0 if name == "sigma" else 1.0)
    assert (chosen.float().mean(0) - chance).abs().max() < 0.03
    both = chosen[:, 0] & chosen[:, 2]
    assert abs(float(both.float().mean()) - chance**2) < 0.03
    if getattr(made, "synchronize_channels", False):
        assert torch.equal(drawn[both, 0], drawn[both, 2])
        assert abs(float((drawn[chosen] < 1).float().mean()) - 0.5) < 0.04


def test_noise_has_the_drawn_strength_and_no_pattern() -> None:
    op, shape = GaussianNoise(std=(0.2, 0.2)), (2, 8, 9, 10)
    noise = op.apply(torch.zeros(40, *shape), op.draw(keys(40), shape)) / 0.2
    assert stats.kstest(noise.double().numpy().ravel(), "norm").pvalue > 0.001
    flat = noise.double().flatten(2)
    assert abs(np.corrcoef(flat[:, 0].ravel(), flat[:, 1].ravel())[0, 1]) < 0.02
    for axis in (2, 3, 4):
        near, next_to = noise.narrow(axis, 0, 7).flatten(), noise.narrow(axis, 1, 7).flatten()
        assert abs(np.corrcoef(near, next_to)[0, 1]) < 0.02
    assert len({tuple(sample[:5].tolist()) for sample in flat[:, 0]}) == 40
