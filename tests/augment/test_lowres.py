"""Low resolution against MONAI's and nnU-Net's, which make the small image."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import RandSimulateLowResolution
from torch import Tensor
from torch.nn.functional import interpolate

from hasten.augment.lowres import SimulateLowResolution
from hasten.sample.random import sample_key

SHAPES = [(1, 9, 12), (3, 1, 17), (1, 8, 11, 6), (2, 5, 12, 31)]


def images(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(seed))


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def by_interpolate(image: Tensor, zoom: Tensor) -> Tensor:
    """image: (S,) of one channel; zoom: (number of axes,)."""
    sides = image.shape
    small = [max(1, round(side * float(each))) for side, each in zip(sides, zoom, strict=True)]
    mode = "trilinear" if image.ndim == 3 else "bilinear"
    return interpolate(interpolate(image[None, None], small, mode="nearest-exact"), sides, mode=mode)[0, 0]


def monais(image: Tensor, zoom: float) -> Tensor:
    peer = RandSimulateLowResolution(prob=1, upsample_mode="trilinear" if image.ndim == 4 else "bilinear")
    peer._do_transform, peer.zoom_factor = True, zoom
    return torch.as_tensor(peer(image, randomize=False)).as_subclass(Tensor)


@given(side=st.integers(1, 70), zoom=st.floats(0.015625, 2.0, width=32))
@settings(max_examples=150, deadline=None)
def test_any_side_and_zoom_are_monais(side: int, zoom: float) -> None:
    image = torch.arange(side, dtype=torch.float32).square().expand(1, 1, 1, side)
    drawn = {"zoom": torch.full((1, 1, 2), zoom)}
    result = SimulateLowResolution(prob=1, half_pixel=False).apply(image, drawn)
    torch.testing.assert_close(result[0], monais(image[0], zoom), rtol=1e-4, atol=1e-3)
    result = SimulateLowResolution(prob=1).apply(image, drawn)
    torch.testing.assert_close(result[0, 0], by_interpolate(image[0, 0], drawn["zoom"][0, 0]), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_channel_and_axis_can_have_its_zoom(shape: tuple[int, ...]) -> None:
    op = SimulateLowResolution(prob=1, zoom_range=(0.2, 1.0), synchronize_channels=False)
    image, drawn = images(3, shape), op.draw(keys(3), shape)
    assert drawn["zoom"].unique().numel() == 3 * shape[0]
    result = op.apply(image, drawn)
    for row in range(3):
        for channel in range(shape[0]):
            wanted = by_interpolate(image[row, channel], drawn["zoom"][row, channel])
            torch.testing.assert_close(result[row, channel], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 9, 12), (2, 8, 11, 14)], ids=str)
def test_it_is_nnunets(shape: tuple[int, ...]) -> None:
    peers = pytest.importorskip("batchgeneratorsv2.transforms.spatial.low_resolution")
    peer = peers.SimulateLowResolutionTransform((0.5, 1), False, True, None)
    op = SimulateLowResolution(prob=1, synchronize_channels=False, ignore_axes=(0,), p_per_channel=0.5)
    image, drawn = images(4, shape), op.draw(keys(4), shape)
    result = op.apply(image, drawn)
    for row in range(4):
        scales = drawn["zoom"][row]
        wanted = peer._apply_to_image(image[row].clone(), apply_to_channel=range(shape[0]), scales=scales)
        torch.testing.assert_close(result[row], wanted, rtol=1e-4, atol=1e-5)


def test_what_is_not_chosen_stays_exactly() -> None:
    shape = (4, 6, 9, 8)
    op = SimulateLowResolution(prob=1, synchronize_channels=False, p_per_channel=0.6, ignore_axes=(-1,))
    image, drawn = images(200, shape), op.draw(keys(200), shape)
    result, zoom = op.apply(image, drawn), drawn["zoom"]
    changed = (zoom != 1).any(2)
    assert abs(float(changed.float().mean()) - 0.6) < 0.1
    assert (zoom[..., 2] == 1).all()
    assert torch.equal(zoom[..., 0], zoom[..., 1])
    assert torch.equal(result[~changed], image[~changed])
