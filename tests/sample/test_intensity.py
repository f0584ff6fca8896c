from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from hasten.config.schema import SampleConfig
from hasten.sample.intensity import augment_intensity, contrast, draw_intensity, gamma
from hasten.sample.random import sample_key
from tests.sample.arenas import OFF

OPERATIONS = {
    "brightness": ("brightness_prob", "brightness_range", 1.0),
    "contrast": ("contrast_prob", "contrast_range", 1.0),
    "gamma": ("gamma_prob", "gamma_range", 1.0),
    "noise": ("noise_prob", "noise_std", 0.0),
}


def config_of(**options: Any) -> SampleConfig:
    return SampleConfig(**{**OFF, **options})


def keys(count: int) -> Tensor:
    return sample_key(torch.tensor(0), torch.arange(count))


def images(count: int, channels: int = 2) -> Tensor:
    return torch.randn((count, channels, 5, 6, 7), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", OPERATIONS)
def test_strengths_are_uniform_at_the_given_rate(name: str) -> None:
    prob, bounds, off = OPERATIONS[name]
    drawn = getattr(draw_intensity(keys(20_000), config_of(**{prob: 0.3, bounds: (0.4, 0.9)})), name)
    used = drawn[drawn != off].double().numpy()
    assert stats.binomtest(len(used), 20_000, 0.3).pvalue > 0.001
    assert stats.kstest((used - 0.4) / 0.5, "uniform").pvalue > 0.001


def test_operations_are_drawn_independently() -> None:
    config = config_of(brightness_prob=0.5, contrast_prob=0.5, gamma_prob=0.5, noise_prob=0.5, noise_std=(0.1, 0.2))
    strength = draw_intensity(keys(100_000), config)
    used = [getattr(strength, name) != off for name, (_, _, off) in OPERATIONS.items()]
    related = torch.corrcoef(torch.stack(used).double()) - torch.eye(4)
    assert related.abs().max() < 0.02


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.7])
def test_gamma_agrees_with_adjust_contrast_of_monai(exponent: float) -> None:
    """MONAI takes the range over all channels; ours is each channel's own, so one channel is compared."""
    from monai.transforms import AdjustContrast

    image = images(3, 1)
    found = gamma(image, torch.full((3, 1, 1, 1, 1), exponent))
    for number in range(3):
        expected = torch.as_tensor(AdjustContrast(gamma=exponent, retain_stats=False)(image[number]))
        assert (found[number] - expected).abs().max() < 1e-5


def test_brightness_agrees_with_scale_intensity_of_monai() -> None:
    from monai.transforms import ScaleIntensity

    config, image = config_of(brightness_prob=1.0), images(4)
    strength = draw_intensity(keys(4), config)
    found = augment_intensity(image, keys(4), strength, config)
    for number in range(4):
        scale = ScaleIntensity(minv=None, maxv=None, factor=float(strength.brightness[number]) - 1)
        assert (found[number] - torch.as_tensor(scale(image[number]))).abs().max() < 1e-6


def test_contrast_keeps_mean_and_range() -> None:
    image = images(2)
    weaker = contrast(image, torch.full((2, 1, 1, 1, 1), 0.5))
    space = (2, 3, 4)
    assert torch.allclose(weaker.mean(space), image.mean(space), atol=1e-6)
    assert torch.allclose(weaker.std(space), image.std(space) * 0.5, atol=1e-5)
    stronger = contrast(image, torch.full((2, 1, 1, 1, 1), 2.0))
    assert torch.equal(stronger.amin(space), image.amin(space))
    assert torch.equal(stronger.amax(space), image.amax(space))


def test_gamma_keeps_the_range_and_the_order() -> None:
    image = images(2)
    bent = gamma(image, torch.full((2, 1, 1, 1, 1), 1.5))
    space = (2, 3, 4)
    assert torch.allclose(bent.amin(space), image.amin(space), atol=1e-6)
    assert torch.allclose(bent.amax(space), image.amax(space), atol=1e-5)
    assert torch.equal(bent.flatten(2).argsort(2), image.flatten(2).argsort(2))


def test_noise_has_the_drawn_strength_and_no_pattern() -> None:
    config = config_of(noise_prob=1.0, noise_std=(0.2, 0.2))
    key = keys(40)
    noise = augment_intensity(torch.zeros(40, 2, 8, 9, 10), key, draw_intensity(key, config), config) / 0.2
    assert stats.kstest(noise.double().numpy().ravel(), "norm").pvalue > 0.001
    flat = noise.double().flatten(2)
    assert abs(np.corrcoef(flat[:, 0].ravel(), flat[:, 1].ravel())[0, 1]) < 0.02
    for axis in (2, 3, 4):
        near, next_to = noise.narrow(axis, 0, 7).flatten(), noise.narrow(axis, 1, 7).flatten()
        assert abs(np.corrcoef(near, next_to)[0, 1]) < 0.02
    assert len({tuple(sample[:5].tolist()) for sample in flat[:, 0]}) == 40
