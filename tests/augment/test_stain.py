"""Stain jitter is scikit-image's deconvolution with numbers between its two halves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hasten.augment.stain import StainJitter
from hasten.sample.random import sample_key

SIZES = [(19, 12), (5, 11, 8)]
STRONG = StainJitter(alpha=(0.7, 1.3), beta=(-0.2, 0.2))
RGB_FROM_HED = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def images(count: int, size: tuple[int, ...], seed: int = 0) -> Tensor:
    """With black, white and pure colours in them."""
    image = torch.rand(count, 3, *size, generator=torch.Generator().manual_seed(seed))
    image[:, :, 0] = torch.round(image[:, :, 0])
    image[:, :, 1] = image[:, :, 1] ** 0.1
    return image


# scikit-image 0.18 and later, in double precision; channels last.


def rgb2hed(rgb: np.ndarray) -> np.ndarray:
    stains = (np.log(np.maximum(rgb, 1e-6)) / np.log(1e-6)) @ np.linalg.inv(RGB_FROM_HED)
    return np.maximum(stains, 0)


def hed2rgb(stains: np.ndarray) -> np.ndarray:
    return np.clip(np.exp((stains * np.log(1e-6)) @ RGB_FROM_HED), 0, 1)


def expected(image: Tensor, drawn: Mapping[str, Tensor], apart: Any = rgb2hed, together: Any = hed2rgb) -> Tensor:
    actual = []
    for row, sample in enumerate(image.double().numpy()):
        stains = apart(np.moveaxis(sample, 0, -1))
        stains = stains * drawn["alpha"][row].numpy() + drawn["beta"][row].numpy()
        actual.append(np.moveaxis(together(stains), -1, 0))
    return torch.from_numpy(np.stack(actual)).float()


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_is_scikit_images_deconvolution(size: tuple[int, ...], seed: int) -> None:
    image, drawn = images(4, size, seed), STRONG.draw(keys(4, seed), (3, *size))
    actual = STRONG.apply(image, drawn)
    assert torch.allclose(actual, expected(image, drawn), rtol=1e-4, atol=1e-7)
    assert actual.min() >= 0
    assert actual.max() <= 1


def test_scikit_image_itself() -> None:
    color = pytest.importorskip("skimage.color")
    image, drawn = images(4, (17, 10)), STRONG.draw(keys(4), (3, 17, 10))
    wanted = expected(image, drawn, color.rgb2hed, color.hed2rgb)
    assert torch.allclose(STRONG.apply(image, drawn), wanted, rtol=1e-4, atol=1e-7)


def test_images_of_0_to_255() -> None:
    image, drawn = images(4, (9, 13)), STRONG.draw(keys(4), (3, 9, 13))
    op = StainJitter(alpha=STRONG.alpha, beta=STRONG.beta, value_range=255)
    assert torch.allclose(op.apply(image * 255, drawn) / 255, expected(image, drawn), rtol=1e-4, atol=1e-7)
