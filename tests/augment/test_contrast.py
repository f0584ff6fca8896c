"""Powers, stretching and curves against MONAI and batchgeneratorsv2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hasten.augment.contrast import Contrast, Gamma
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
