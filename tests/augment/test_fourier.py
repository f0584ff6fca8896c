"""Gibbs and spike noise against MONAI's, which do whole transforms of Fourier."""

from __future__ import annotations

import pytest
import torch
from monai.transforms import GibbsNoise as MonaiGibbs
from monai.transforms import KSpaceSpikeNoise as MonaiSpike
from monai.transforms import RandKSpaceSpikeNoise
from torch import Tensor

from hasten.augment.fourier import GibbsNoise, KSpaceSpikeNoise
from hasten.sample.random import sample_key

SHAPES = [(1, 9, 12), (3, 8, 7), (1, 8, 11, 6), (2, 5, 12, 9)]


def images(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def close(result: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(result, torch.as_tensor(wanted).as_subclass(Tensor), rtol=1e-4, atol=5e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gibbs_noise_is_monais(shape: tuple[int, ...]) -> None:
    image, alpha = images(6, shape), torch.tensor([0.0, 0.3, 0.5, 0.7, 0.9, 1.0])
    result = GibbsNoise(prob=1).apply(image, {"alpha": alpha})
    for row in range(6):
        close(result[row], MonaiGibbs(float(alpha[row]))(image[row]))
    close(result[0], image[0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("channel_wise", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_spike_is_monais(shape: tuple[int, ...], channel_wise: bool, seed: int) -> None:
    op = KSpaceSpikeNoise(prob=1, intensity_range=(2.0, 6.0), channel_wise=channel_wise)
    image, drawn = images(3, shape, seed), op.draw(keys(3, seed), shape)
    assert drawn["loc"].shape == (3, shape[0] if channel_wise else 1, len(shape) - 1)
    close_to_monai(op.apply(image, drawn), image, drawn["loc"], drawn["intensity"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_spike_at_the_ends_and_the_middle_is_monais(shape: tuple[int, ...]) -> None:
    op = KSpaceSpikeNoise(prob=1, intensity_range=(2.0, 6.0), channel_wise=False)
    sides = torch.tensor(shape[1:])
    loc = torch.stack([torch.zeros_like(sides), sides - 1, sides // 2])[:, None]
    image, intensity = images(3, shape), torch.full((3, shape[0]), 4.0)
    close_to_monai(op.apply(image, {"loc": loc, "intensity": intensity}), image, loc, intensity)
    nothing = torch.zeros(3, *shape)
    close_to_monai(op.apply(nothing, {"loc": loc, "intensity": intensity}), nothing, loc, intensity)


def close_to_monai(result: Tensor, image: Tensor, loc: Tensor, intensity: Tensor) -> None:
    channels = image.shape[1]
    for row in range(len(image)):
        places = [(channel, *loc[row, channel % loc.shape[1]].tolist()) for channel in range(channels)]
        close(result[row], MonaiSpike(places, intensity[row].tolist())(image[row]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_default_intensity_is_a_multiple_of_the_mean_log(shape: tuple[int, ...]) -> None:
    op = KSpaceSpikeNoise(prob=1)
    image, drawn = images(2, shape), op.draw(keys(2), shape)
    ranges = [RandKSpaceSpikeNoise(prob=1)._set_default_range(each) for each in image]
    level = torch.tensor([[float(low) / 0.95 for low, _ in each] for each in ranges])
    close_to_monai(op.apply(image, drawn), image, drawn["loc"], drawn["intensity"] * level)
