"""Powers, stretching and curves against MONAI and batchgeneratorsv2."""

from __future__ import annotations

from typing import Any

import monai.transforms as mt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hasten.augment.contrast import AdjustContrast, Contrast, Gamma
from hasten.sample.random import sample_key

SIZES = [(1, 9, 14), (3, 12, 7), (2, 6, 9, 11)]
each_size = pytest.mark.parametrize("shape", SIZES, ids=str)


def keys(count: int, first: int = 0) -> Tensor:
    return sample_key(torch.tensor(0), torch.arange(first, first + count))


def images(shape: tuple[int, ...], seed: int) -> Tensor:
    """Two samples of Hounsfield-like values whose channels differ."""
    draw = torch.Generator().manual_seed(seed)
    image = torch.randn(2, *shape, generator=draw) * 150 - 200
    return image * torch.linspace(0.5, 2, shape[0]).view(-1, *[1] * (len(shape) - 1))


def close(actual: Tensor, wanted: list[Any]) -> None:
    expected = torch.stack([torch.as_tensor(each).as_subclass(Tensor) for each in wanted])
    assert torch.allclose(actual, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@settings(max_examples=30, deadline=None)
@given(
    shape=st.sampled_from(SIZES), invert=st.booleans(), retain=st.booleans(), seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)  # fmt: skip
def test_adjust_contrast_is_monais(shape: tuple[int, ...], invert: bool, retain: bool, seed: int, scale: float) -> None:
    image = images(shape, seed) * scale
    op = AdjustContrast(invert_image=invert, retain_stats=retain)
    drawn = op.draw(keys(2, seed), shape)
    theirs = mt.AdjustContrast(1.0, invert_image=invert, retain_stats=retain)
    close(op.apply(image, drawn), [theirs(image[row], float(drawn["gamma"][row])) for row in range(2)])


@settings(max_examples=30, deadline=None)
@given(
    shape=st.sampled_from(SIZES), seed=st.integers(0, 1000), p_retain=st.sampled_from([0.0, 0.5, 1.0]),
    p_channel=st.sampled_from([0.5, 1.0]), same=st.booleans(),
)  # fmt: skip
def test_gamma_is_batchgenerators(
    shape: tuple[int, ...], seed: int, p_retain: float, p_channel: float, same: bool
) -> None:
    gamma = pytest.importorskip("batchgeneratorsv2.transforms.intensity.gamma")
    op = Gamma(
        gamma=(0.5, 3.0),
        p_invert_image=0.5,
        p_retain_stats=p_retain,
        p_per_channel=p_channel,
        synchronize_channels=same,
    )
    theirs = gamma.GammaTransform(1.0, 0.5, same, p_channel, p_retain)
    image, drawn, wanted = images(shape, seed), op.draw(keys(2, seed), shape), []
    result = op.apply(image, drawn)
    for row in range(2):
        chosen = torch.where(drawn["gamma"][row] != 1)[0]
        state = {
            "apply_to_channel": chosen, "retain_stats": drawn["retain"][row][chosen],
            "invert_image": drawn["invert"][row][chosen], "gamma": drawn["gamma"][row][chosen],
        }  # fmt: skip
        wanted.append(theirs._apply_to_image(image[row].clone(), **state))
        left = drawn["gamma"][row] == 1
        assert torch.equal(result[row][left], image[row][left])
    close(result, wanted)


@each_size
@pytest.mark.parametrize("preserve_range", [False, True])
@pytest.mark.parametrize("p_per_channel", [0.5, 1.0])
def test_contrast_is_batchgenerators(shape: tuple[int, ...], preserve_range: bool, p_per_channel: float) -> None:
    contrast = pytest.importorskip("batchgeneratorsv2.transforms.intensity.contrast")
    op = Contrast(contrast_range=(0.3, 3.0), preserve_range=preserve_range, p_per_channel=p_per_channel)
    theirs = contrast.ContrastTransform(1.0, preserve_range, False, p_per_channel)
    for seed in range(4):
        image, drawn, wanted = images(shape, seed), op.draw(keys(2, seed), shape), []
        result = op.apply(image, drawn)
        for row in range(2):
            multiplier = drawn["multiplier"][row]
            chosen = torch.where(multiplier != 1)[0]
            wanted.append(
                theirs._apply_to_image(image[row].clone(), apply_to_channel=chosen, multipliers=multiplier[chosen])
            )
            assert torch.equal(result[row][multiplier == 1], image[row][multiplier == 1])
        close(result, wanted)


def test_a_power_keeps_the_ends_and_the_statistics() -> None:
    image = images((2, 24, 25, 26), 0) + 2000
    drawn = {"gamma": torch.tensor([0.3, 4.5])}
    result = AdjustContrast().apply(image, drawn)
    assert torch.allclose(result.amin((1, 2, 3, 4)), image.amin((1, 2, 3, 4)))
    assert torch.allclose(result.amax((1, 2, 3, 4)), image.amax((1, 2, 3, 4)), rtol=1e-5)
    kept = AdjustContrast(retain_stats=True).apply(image, drawn)
    assert torch.allclose(kept.double().std((1, 2, 3, 4)), image.double().std((1, 2, 3, 4)), rtol=1e-4)
    assert torch.allclose(kept.double().mean((1, 2, 3, 4)), image.double().mean((1, 2, 3, 4)), rtol=1e-5)


def test_values_that_are_all_the_same_stay() -> None:
    image = torch.full((2, 2, 6, 7, 8), -1000.1)
    for op in (
        AdjustContrast(),
        AdjustContrast(retain_stats=True, invert_image=True),
        Gamma(p_invert_image=0.5),
        Gamma(p_retain_stats=0.5),
        Contrast(),
    ):
        assert torch.allclose(op.apply(image, op.draw(keys(2), (2, 6, 7, 8))), image, rtol=1e-5)
