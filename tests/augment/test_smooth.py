"""Gaussian filters against MONAI, batchgeneratorsv2 and scipy."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import monai.transforms as mt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

from hasten.augment.smooth import Blur, GaussianSmooth
from hasten.sample.random import sample_key

SIZES = [(1, 19, 14), (3, 12, 17), (2, 16, 9, 11)]


def keys(count: int, first: int = 0) -> Tensor:
    return sample_key(torch.tensor(0), torch.arange(first, first + count))


def images(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.rand(2, *shape, generator=torch.Generator().manual_seed(seed)) * 100 + 20


def close(actual: Tensor, wanted: list[Any]) -> None:
    expected = torch.stack([torch.as_tensor(each).as_subclass(Tensor) for each in wanted])
    assert torch.allclose(actual, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))


@settings(max_examples=12, deadline=None)
@given(shape=st.sampled_from(SIZES), seed=st.integers(0, 1000), high=st.sampled_from([0.3, 1.5, 4.0]))
def test_smooth_is_monais_cut_off_at_the_drawn_sigma(shape: tuple[int, ...], seed: int, high: float) -> None:
    op = GaussianSmooth(sigma_x=(0.05, high), sigma_y=(0.1, 1.0), sigma_z=(0.2, high))
    image, drawn = images(shape, seed), op.draw(keys(2, seed), shape)
    assert drawn["sigma"].shape == (2, len(shape) - 1)
    close(op.apply(image, drawn), [mt.GaussianSmooth(drawn["sigma"][row].tolist())(image[row]) for row in range(2)])


@settings(max_examples=12, deadline=None)
@given(
    shape=st.sampled_from(SIZES), seed=st.integers(0, 1000), high=st.sampled_from([0.3, 1.0, 2.5]),
    p_channel=st.sampled_from([0.5, 1.0]),
)  # fmt: skip
def test_blur_is_batchgenerators(shape: tuple[int, ...], seed: int, high: float, p_channel: float) -> None:
    pytest.importorskip("batchgeneratorsv2")
    module = _their_blur()
    op = Blur(blur_sigma=(0.15, high), p_per_channel=p_channel)
    theirs = module.GaussianBlurTransform(1.0, False, False, p_channel)
    image, drawn, wanted = images(shape, seed), op.draw(keys(2, seed), shape), []
    result = op.apply(image, drawn)
    for row in range(2):
        sigma = drawn["sigma"][row]
        chosen = sigma[:, 0] > 0
        sigmas = sigma[chosen].tolist()
        state = {"apply_to_channel": chosen, "sigmas": sigmas}
        wanted.append(theirs._apply_to_image(image[row].clone(), **state) if sigmas else image[row])
        assert torch.equal(result[row][~chosen], image[row][~chosen])
    close(result, wanted)


def _their_blur() -> Any:
    """The module imports a picture for its own demonstration; a stand-in does where scikit-image is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            import skimage.data  # type: ignore[import-not-found]  # noqa: F401
        except ImportError:
            data: Any = ModuleType("skimage.data")
            data.camera = None
            patch.setitem(sys.modules, "skimage", ModuleType("skimage"))
            patch.setitem(sys.modules, "skimage.data", data)
        return pytest.importorskip("batchgeneratorsv2.transforms.noise.gaussian_blur")


def test_blur_is_scipys_with_mirrored_borders() -> None:
    image, op = images((2, 13, 12, 11), 0), Blur(blur_sigma=(0.4, 1.7))
    drawn = op.draw(keys(2), (2, 13, 12, 11))
    wanted = image.clone().double().numpy()
    for row in range(2):
        for channel in range(2):
            for axis in range(3):
                sigma = float(drawn["sigma"][row, channel, axis])
                wanted[row, channel] = gaussian_filter1d(
                    wanted[row, channel], sigma, axis=axis, mode="mirror", radius=int(3 * sigma + 0.25)
                )
    assert torch.allclose(op.apply(image, drawn), torch.as_tensor(wanted).float(), rtol=1e-5)


def test_a_sigma_of_zero_changes_nothing() -> None:
    image = images((2, 7, 8), 0)
    assert torch.equal(Blur().apply(image, {"sigma": torch.zeros(2, 2, 2)}), image)
    assert torch.equal(GaussianSmooth(sigma_x=(0, 1)).apply(image, {"sigma": torch.zeros(2, 2)}), image)


def test_an_axis_shorter_than_the_filter_takes_the_weights_that_fit() -> None:
    image = images((1, 1, 3, 20), 0)
    smooth = GaussianSmooth(sigma_x=(2.0, 3.0), sigma_y=(2.0, 3.0))
    drawn = smooth.draw(keys(2), (1, 1, 3, 20))
    close(smooth.apply(image, drawn), [mt.GaussianSmooth(drawn["sigma"][row].tolist())(image[row]) for row in range(2)])
    flat, blur = torch.full((2, 1, 2, 3, 20), 7.0), Blur(blur_sigma=(3.0, 4.0))
    assert torch.allclose(blur.apply(flat, blur.draw(keys(2), (1, 2, 3, 20))), flat)
