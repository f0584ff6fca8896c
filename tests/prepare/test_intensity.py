from __future__ import annotations

import re
import warnings

import monai.transforms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.config.scalings import scalings
from hasten.config.schema import PrepareConfig
from hasten.prepare.intensity import check_outliers, write_scaled
from hasten.prepare.resample import slabs


def scaled(volume: np.ndarray, **fields: object) -> np.ndarray:
    spec = PrepareConfig(**fields)
    out = np.empty(volume.shape, spec.dtype)
    write_scaled(slabs(volume, volume.shape), out, scalings(spec, 1)[0])
    return out


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-3)])
@given(seed=st.integers(0, 2**32 - 1), mean=st.floats(-3000, 3000), std=st.floats(1, 500))
def test_zscore_matches_monai(dtype: str, tolerance: float, seed: int, mean: float, std: float) -> None:
    volume = np.random.default_rng(seed).normal(mean, std, (5, 6, 7)).astype(np.float32)
    expected = monai.transforms.NormalizeIntensity()(volume[None])[0].numpy()
    np.testing.assert_allclose(
        scaled(volume, intensity="zscore", dtype=dtype), expected, atol=tolerance + 1e-6 * abs(mean)
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float16", 5e-4)])
def test_window_matches_monai(dtype: str, tolerance: float) -> None:
    volume = np.random.default_rng(0).integers(-1024, 3000, (20, 30, 40)).astype(np.int16)
    reference = monai.transforms.ScaleIntensityRange(-57, 164, 0.0, 1.0, clip=True)
    expected = reference(volume.astype(np.float32)).numpy()
    got = scaled(volume, intensity="window", window=(-57.0, 164.0), dtype=dtype)
    np.testing.assert_allclose(got, expected, atol=tolerance)
    assert got.min() == 0
    assert got.max() == 1


@pytest.mark.parametrize("value", [0, 1, -3.7, 0.1, 1e6, 1e30])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_constant_image_becomes_zero(value: float, dtype: str) -> None:
    assert not scaled(np.full((31, 65, 67), value, np.float32), intensity="zscore", dtype=dtype).any()


def test_zscore_of_the_worst_outlier_stays_in_float16() -> None:
    volume = np.zeros((64, 128, 128), np.float32)
    volume[3, 4, 5] = 1e10
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = scaled(volume, intensity="zscore")
    assert got.max() == pytest.approx(1024, rel=1e-3)  # the square root of the number of voxels
    assert np.isfinite(got).all()


@pytest.mark.parametrize("value", [3e38, -3e38, 1e30, 1e7, 2.0**31 - 1])
@pytest.mark.parametrize("shape", [(12, 20, 30), (1, 200, 220), (40, 64, 64)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_a_voxel_that_would_flatten_all_others_is_named(value: float, shape: tuple[int, int, int], dtype: type) -> None:
    if dtype == np.int32 and abs(value) > 2**31:
        value = 2**31 - 1
    volume = np.random.default_rng(0).normal(300, 60, shape).astype(dtype)
    check_outliers(volume, 1)
    volume[0, 7, 9] = value
    shown = rf" = \(0, 7, 9\) of channel 1 holds {re.escape(f'{float(volume[0, 7, 9]):g}')}, but "
    with pytest.raises(ValueError, match=shown):
        check_outliers(volume, 1)


def heavy_tails() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (24, 64, 64)).astype(np.float32)
    brain = np.where(rng.random(noise.shape) < 0.2, 300 + 60 * noise, 0).astype(np.float32)
    beads = noise.copy()
    beads[10:13, 20:22, 30:32] = 60_000
    implant = 40 * noise
    implant[5, 6:8, 7] = 30_000
    spike = brain.copy()
    spike[3, 4, 5] = 1e5
    one = np.zeros_like(noise)
    one[3, 4, 5] = 1
    hot = (100 + noise).astype(np.uint16)
    hot[3, 4, 5] = 65_535
    return {
        "implant": implant,
        "spike": spike,
        "beads in the dark": beads,
        "one voxel": one,
        "a hot pixel": hot,
        "log-normal": np.exp(3 * noise),
        "constant": np.full_like(noise, 1e14),
        "eight voxels": noise[0, 0, :8, None, None],
    }


@pytest.mark.parametrize("name", heavy_tails())
def test_heavy_tails_pass(name: str) -> None:
    check_outliers(heavy_tails()[name], 0)


def test_none_keeps_the_values() -> None:
    volume = np.arange(-30, 30, dtype=np.int16).reshape(3, 4, 5)
    assert np.array_equal(scaled(volume, intensity="none"), volume)
    far = np.array([[[-70_000.0, 5.0]]])
    assert np.array_equal(scaled(far, intensity="none", dtype="float32"), far)
    with pytest.raises(ValueError, match=r"-70000 to 5.*prepare\.dtype=float32"):
        scaled(far, intensity="none")


@pytest.mark.parametrize("values", [(3e38, 3e38), (-3e38, 3e38), (2.0**62, 2.0**62)])
def test_values_that_are_all_too_large_are_refused(values: tuple[float, float]) -> None:
    volume = np.resize(np.array(values, np.float32), (4, 20, 20))
    with pytest.raises(ValueError, match=r"the values of channel 2, .*, are too large.*; divide them"):
        check_outliers(volume, 2)
