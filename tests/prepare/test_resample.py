from __future__ import annotations

import warnings

import monai.transforms
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data import MetaTensor

from hasten.prepare import resample
from hasten.prepare.resample import resample_label, resampled_shape, slabs

SHAPES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
DTYPES = st.sampled_from(["u1", "i1", "<i2", ">i2", "<u2", "<i4", "<u4", "<f4", ">f4", "<f8"])


def resample_image(array: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Trilinear: (C, D, H, W) of any real dtype to float32 (C, *shape). The same shape gives `array` itself."""
    if array.shape[1:] == shape:
        return array
    result = np.empty((len(array), *shape), np.float32)
    for channel, volume in enumerate(array):
        target = torch.from_numpy(result[channel])
        for place, slab in slabs(volume, shape):
            target[place] = slab
    return result


def reference_axis(array: np.ndarray, size: int, axis: int) -> np.ndarray:
    """Linear interpolation along one axis, one output voxel at a time."""
    n = array.shape[axis]
    planes = []
    for i in range(size):
        centre = min(max((i + 0.5) * n / size - 0.5, 0), n - 1)
        low = int(centre)
        below, above = array.take(low, axis), array.take(min(low + 1, n - 1), axis)
        planes.append(below + (above - below) * (centre - low))
    return np.stack(planes, axis)


def reference_image(array: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    result = array.astype(np.float64)
    for axis, size in enumerate(shape):
        result = reference_axis(result, size, axis + 1)
    return result


@given(SHAPES, SHAPES, DTYPES, st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_image_matches_the_definition(
    shape: tuple[int, int, int], new: tuple[int, int, int], dtype: str, planes: int, seed: int
) -> None:
    values = np.random.default_rng(seed).integers(0, 100, (2, *shape)).astype(dtype)
    values.flags.writeable = False
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(resample, "_SLAB_VOXELS", 1)
        patch.setattr(resample, "_SLAB_PLANES", planes)
        got = resample_image(values[:, ::-1, :, ::-1], new)
    if shape != new:
        assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference_image(values[:, ::-1, :, ::-1], new), atol=1e-3)


@given(SHAPES, SHAPES, st.integers(0, 2**32 - 1))
def test_label_is_the_highest_of_the_interpolated_masks(
    shape: tuple[int, int, int], new: tuple[int, int, int], seed: int
) -> None:
    values = np.array([0, 1, 2, 3, 255], np.uint8)  # 255: without annotation
    label = np.random.default_rng(seed).choice(values, shape).transpose(2, 0, 1)[:, ::-1]
    masks = torch.stack([torch.from_numpy((label == value).astype(np.float64)) for value in values])
    scores = torch.nn.functional.interpolate(masks[None], new, mode="trilinear", align_corners=False)[0]
    got = resample_label(label, new)
    assert got.dtype == np.uint8
    assert np.array_equal(got, values[scores.numpy().round(5).argmax(0)])


def monai_spacing(
    array: np.ndarray, spacing: tuple[float, ...], target: tuple[float, ...], **options: object
) -> np.ndarray:
    """MONAI's Spacing of a (C, D, H, W) array; it works on (C, x, y, z)."""
    affine = torch.diag(torch.tensor([*spacing[::-1], 1.0], dtype=torch.float64))
    # scale_extent gives the offset the sign of the first corner, so the image must not reach across the world's origin.
    affine[:3, 3] = 100
    meta = MetaTensor(torch.from_numpy(array.transpose(0, 3, 2, 1).copy()).float(), affine=affine)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about scale_extent without align_corners, which is what is meant
        done = monai.transforms.Spacing(target[::-1], padding_mode="border", **options)(meta)
    return done.numpy().transpose(0, 3, 2, 1)


@pytest.mark.parametrize(
    ("spacing", "target"),
    [
        ((1.0, 1.0, 1.0), (2.0, 2.0, 2.0)),
        ((1.0, 1.0, 1.0), (0.5, 0.5, 0.5)),
        ((5.0, 0.75, 0.75), (2.5, 1.5, 1.0)),
        ((3.0, 0.5, 0.5), (3.0, 0.75, 0.75)),
    ],
)
def test_matches_monai_over_the_same_extent(
    spacing: tuple[float, float, float], target: tuple[float, float, float]
) -> None:
    """With scale_extent=True and sizes that divide evenly. Where they don't, MONAI keeps the exact spacing, and so
    a grid that ends elsewhere than the image does."""
    array = np.random.default_rng(0).normal(size=(2, 12, 24, 36)).astype(np.float32)
    shape = resampled_shape((12, 24, 36), spacing, target)
    expected = monai_spacing(array, spacing, target, scale_extent=True, mode="bilinear")
    assert expected.shape == (2, *shape)
    np.testing.assert_allclose(resample_image(array, shape), expected, atol=1e-4)


@settings(max_examples=50)
@given(SHAPES, st.tuples(*[st.floats(0.1, 9)] * 3), st.tuples(*[st.floats(0.1, 9)] * 3))
def test_shape_covers_the_extent(
    shape: tuple[int, int, int], spacing: tuple[float, float, float], target: tuple[float, float, float]
) -> None:
    got = resampled_shape(shape, spacing, target)
    for n, own, new, m in zip(shape, spacing, target, got, strict=True):
        assert m == 1 or abs(m * new - n * own) <= new / 2 * (1 + 1e-9) or n == 1
        assert m >= 1
        assert n > 1 or m == 1
    assert resampled_shape(shape, spacing, (0, 0, 0)) == shape
    assert resampled_shape(shape, spacing, spacing) == shape


def test_shape_errors() -> None:
    with pytest.raises(ValueError, match=r"prepare\.spacing.*negative"):
        resampled_shape((4, 4, 4), (1, 1, 1), (1, -1, 1))
    with pytest.raises(ValueError, match=r"check the spacing in the file's header"):
        resampled_shape((100, 512, 512), (1000, 800, 800), (1, 1, 1))
