"""Maps: what MONAI's transforms do with the same parameters, and that merging is doing one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Affine as MonaiAffine
from monai.transforms import Rotate90 as MonaiRotate90
from scipy.ndimage import gaussian_filter
from torch import Tensor

from hasten.augment.affine import Affine, Spatial, Zoom
from hasten.augment.grid import AxisFlip, Flip, Mirror, Resize, Rotate90
from hasten.augment.maps import Map, MapOp, compose
from hasten.augment.read import as_cases, coordinates_of, read
from hasten.sample.random import sample_key

OPS: list[MapOp] = [
    Affine(
        prob=1, rotate_range=((-0.4, 0.4),) * 3, shear_range=((-0.1, 0.1),) * 6, translate_range=((-3, 3),) * 3,
        scale_range=((-0.2, 0.2),) * 3,
    ),
    Zoom(prob=1, min_zoom=(0.7,), max_zoom=(1.4,)),
    Spatial(rotate_prob=1, scale_prob=1),
    Flip(prob=1, spatial_axis=(0,)),
    Mirror(spatial_axis=(0, 1)),
    AxisFlip(prob=1),
    Rotate90(prob=1, spatial_axes=(0, 1)),
    
    Resize(spatial_size=(9, 14)),
]  # fmt: skip


def keys(count: int, seed: int = 0) -> Tensor:
    return sample_key(torch.tensor(seed), torch.arange(count))


def smooth(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """A (C, *S) image without jumps."""
    noise = np.random.default_rng(seed).normal(size=shape)
    return torch.from_numpy(gaussian_filter(noise, (0, *[1.0] * (len(shape) - 1)))).float()


def warped(
    image: Tensor, result: Map, out: tuple[int, ...] | None = None, mode: str = "bilinear", padding: str = "zeros"
) -> Tensor:
    """One image (C, *S) through the map of one sample."""
    dims = image.ndim - 1
    full = image[None] if dims == 3 else image[None, :, None]
    size = tuple(full.shape[2:])
    coordinates = coordinates_of(result, size, out or size)
    first = torch.zeros(1, 3, dtype=torch.int64)
    value = read(
        as_cases(full),
        torch.zeros(1, dtype=torch.int64),
        first,
        coordinates,
        mode=mode,
        padding_mode=padding,
        spatial_dims=dims,
    )
    return value[0] if dims == 3 else value[0, :, 0]


def inner(image: Tensor, margin: int) -> Tensor:
    return image[(slice(None), *[slice(margin, -margin)] * (image.ndim - 1))]


def plain(value: Any) -> Tensor:
    return torch.as_tensor(value).as_subclass(Tensor)


@pytest.mark.parametrize("shape", [(2, 20, 17), (1, 14, 18, 13)], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_affine_is_monais(shape: tuple[int, ...], seed: int, mode: str, padding: str) -> None:
    image, dims = smooth(shape), len(shape) - 1
    size = (1, *shape[1:]) if dims == 2 else shape[1:]
    op = OPS[0]
    drawn = op.draw(keys(1, seed), size, dims)
    low = 3 - dims
    shear = drawn["shear"][0].tolist() if dims == 3 else [drawn["shear"][0, 3].item(), drawn["shear"][0, 5].item()]
    monai = MonaiAffine(
        rotate_params=drawn["rotate"][0].tolist() if dims == 3 else drawn["rotate"][0, 0].item(), shear_params=shear,
        translate_params=drawn["translate"][0, low:].tolist(), scale_params=drawn["scale"][0, low:].tolist(),
        padding_mode=padding, mode=mode, image_only=True,
    )  # fmt: skip
    wanted = plain(monai(image))
    result = warped(image, op.map(drawn, size, dims), mode=mode, padding=padding)
    if mode == "nearest":
        assert (result != wanted).float().mean() < 0.003  # a rounding either way at halves
    else:
        assert torch.allclose(result, wanted, atol=1e-4)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("axes", [(0, 1), (1, 2), (0, 2)])
def test_quarter_turns_are_monais_bit_for_bit(k: int, axes: tuple[int, int]) -> None:
    image = smooth((2, 8, 8, 8))
    op = Rotate90(prob=1, spatial_axes=axes)
    result = warped(image, op.map({"k": torch.tensor([k])}, (8, 8, 8), 3))
    assert torch.equal(result, plain(MonaiRotate90(k, axes)(image)))


@pytest.mark.parametrize("dims", [2, 3])
def test_merged_maps_are_one_after_the_other(dims: int) -> None:
    """On a linear function interpolation is exact, so that any difference is of the maps."""
    side = (1, 16, 16) if dims == 2 else (16, 16, 16)
    grid = torch.stack(torch.meshgrid(*[torch.arange(16.0)] * dims, indexing="ij"))
    image = (grid * torch.tensor([0.3, -0.2, 0.5])[:dims].reshape(-1, *[1] * dims)).sum(0)[None]
    small = Affine(prob=1, rotate_range=((-0.1, 0.1),) * 3, translate_range=((-1, 1),) * 3)
    parts = [small, Flip(prob=1, spatial_axis=(1,)), Zoom(prob=1, min_zoom=(1.1,), max_zoom=(1.3,)), Rotate90(prob=1)]
    one_by_one, merged = image, None
    for number, op in enumerate(parts):
        own = op.map(op.draw(keys(1, number), side, dims), side, dims)  # type: ignore[attr-defined]
        one_by_one = warped(one_by_one, own, padding="border")
        merged = own if merged is None else compose(merged, own)
    assert merged is not None
    margin = 5
    assert torch.allclose(inner(warped(image, merged, padding="border"), margin), inner(one_by_one, margin), atol=1e-4)
