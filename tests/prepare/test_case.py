from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nibabel.orientations import axcodes2ornt, inv_ornt_aff
from numpy.typing import DTypeLike

from hasten.cases.types import Volume
from hasten.config.schema import PrepareConfig
from hasten.prepare.case import prepare_case, restore_label
from hasten.prepare.resample import resample_label
from hasten.prepare.threads import one_torch_thread
from hasten.prepare.types import Geometry

KEEP = PrepareConfig(spacing=(0, 0, 0), intensity="none", crop_foreground=False, dtype="float32")
CODES = st.sampled_from(["RAS", "LPS", "LAS", "ASR", "SRA", "PIL", "IPR"])
SHAPES = st.tuples(st.integers(1, 10), st.integers(1, 10), st.integers(1, 10))


def volume_of(
    shape: tuple[int, ...],
    codes: str = "RAS",
    spacing: tuple[float, float, float] = (1, 1, 1),
    dtype: DTypeLike = np.int16,
    channels: int = 1,
) -> Volume:
    """A noise image with a margin of its minimum; `spacing` is (x, y, z) of the file."""
    rng = np.random.default_rng(sum(shape))
    array = np.full((channels, *shape), 3)
    inner = (slice(None), *(slice(n // 4, max(n // 4 + 1, n - n // 4)) for n in shape))
    array[inner] = rng.integers(4, 100, array[inner].shape)
    affine = np.linalg.inv(inv_ornt_aff(axcodes2ornt(tuple(codes)), (1, 1, 1))) @ np.diag([*spacing, 1.0])
    return Volume(array.astype(dtype), affine)


def as_read_in(volume: Volume, label: np.ndarray, codes: str) -> tuple[Volume, np.ndarray]:
    """The same RAS volume as it would be if its file had the axes `codes`."""
    ornt = axcodes2ornt(tuple(codes))  # of each file axis x, y, z: which RAS axis, which way
    order = [2 - int(ornt[2 - axis][0]) for axis in range(3)]
    steps = tuple(slice(None, None, int(ornt[2 - axis][1])) for axis in range(3))
    spacing = [volume.spacing[axis] for axis in order][::-1]
    affine = np.linalg.inv(inv_ornt_aff(ornt, (1, 1, 1))) @ np.diag([*spacing, 1.0])
    image = volume.array.transpose(0, *(1 + axis for axis in order))[(slice(None), *steps)]
    return Volume(np.ascontiguousarray(image), affine), np.ascontiguousarray(label.transpose(order)[steps])


@pytest.mark.parametrize("intensity", ["none", "zscore", "window"])
@given(codes=CODES, shape=SHAPES, crop=st.booleans(), dtype=st.sampled_from(["u1", "i2", ">i2", "f4", "f8"]))
@settings(max_examples=40)
def test_does_not_depend_on_the_files_axes(
    intensity: Any, codes: str, shape: tuple[int, int, int], crop: bool, dtype: str
) -> None:
    shape = (max(2, shape[0]), max(2, shape[1]), max(2, shape[2]))
    spec = PrepareConfig(
        spacing=(1.5, 0.8, 1.1), intensity=intensity, window=(5.0, 50.0), crop_foreground=crop, dtype="float32"
    )
    straight = volume_of(shape, "RAS", (0.9, 1.1, 3.0), dtype, channels=2)
    label = np.random.default_rng(0).integers(0, 3, shape).astype(np.uint8)
    turned, turned_label = as_read_in(straight, label, codes)

    a = prepare_case(straight, label, id="a", spec=spec)
    b = prepare_case(turned, turned_label, id="a", spec=spec)
    assert a.label is not None
    assert np.array_equal(a.image, b.image)
    assert np.array_equal(a.label, b.label)
    assert b.geometry.source_shape == turned.array.shape[1:]
    assert a.image.shape[1:] == a.label.shape == a.geometry.shape
    assert a.image.flags.c_contiguous
    assert b.label.flags.c_contiguous


@given(codes=CODES, shape=SHAPES, crop=st.booleans(), dtype=st.sampled_from(["float16", "float32"]))
def test_restore_is_exact_at_the_own_spacing(codes: str, shape: tuple[int, int, int], crop: bool, dtype: Any) -> None:
    image = volume_of(shape, codes, (0.7, 2.0, 1.3))
    # Only what lies above the minimum may be labelled, since the rest may be cropped.
    label = ((image.array[0] > image.array.min()) * (1 + image.array[0] % 2)).astype(np.uint8)
    done = prepare_case(image, label, id="a", spec=replace(KEEP, crop_foreground=crop, dtype=dtype))
    assert done.label is not None
    back = restore_label(done.label, done.geometry, [0, 2, 300])
    assert np.array_equal(back, np.array([0, 2, 300])[label])
    assert back.dtype == np.uint16
    assert back.flags.c_contiguous
    assert done.label.shape == done.geometry.crop_shape


def test_window_crops_to_what_it_shows() -> None:
    array = np.full((1, 8, 8, 8), -1000, np.int16)
    array[0, 0, 0, 0] = -900  # above the minimum, below the window
    array[0, 2:5, 3:6, 4:7] = 40
    spec = replace(KEEP, intensity="window", window=(-57.0, 164.0), crop_foreground=True)
    done = prepare_case(Volume(array, np.eye(4)), None, id="a", spec=spec)
    assert done.geometry.crop_start == (2, 3, 4)
    assert done.geometry.crop_shape == done.geometry.shape == (3, 3, 3)
    assert done.label is None


@given(shape=SHAPES, codes=CODES, kinds=st.lists(st.sampled_from(["zscore", "window", "none"]), min_size=1, max_size=3))
@settings(max_examples=20)
def test_each_channel_is_scaled_as_it_would_be_alone(shape: tuple[int, int, int], codes: str, kinds: list[Any]) -> None:
    volume = volume_of(shape, codes, channels=len(kinds))
    windows = tuple((10.0 * number, 60.0) if kind == "window" else None for number, kind in enumerate(kinds))
    spec = replace(KEEP, intensity=tuple(kinds), window=windows)
    done = prepare_case(volume, None, id="a", spec=spec)
    for number, (kind, window) in enumerate(zip(kinds, windows, strict=True)):
        one = Volume(volume.array[number : number + 1], volume.affine)
        alone = prepare_case(one, None, id="a", spec=replace(KEEP, intensity=kind, window=window))
        assert np.array_equal(done.image[number], alone.image[0])


def test_two_dimensional() -> None:
    """The slice axis is not resampled, whatever its spacing."""
    image = volume_of((1, 12, 16), "LPS", (1.0, 1.0, 7.0), np.uint8, channels=3)
    label = np.random.default_rng(0).integers(0, 2, (1, 12, 16)).astype(np.uint8)
    done = prepare_case(image, label, id="a", spec=replace(KEEP, spacing=(1.0, 2.0, 2.0), intensity="zscore"))
    assert done.image.shape == (3, 1, 6, 8)
    label = resample_label(done.label, done.geometry.crop_shape)
    assert restore_label(label, done.geometry, [0, 1]).shape == (1, 12, 16)
    same = prepare_case(image, label, id="a", spec=KEEP)
    assert np.array_equal(same.image, image.array[:, :, ::-1, ::-1])


def test_geometry_survives_json() -> None:
    image = volume_of((9, 10, 11), "ASR", (0.1, 1 / 3, 0.7))
    done = prepare_case(image, None, id="a", spec=replace(KEEP, spacing=(0.37, 0.6, 0.2), crop_foreground=True))
    assert Geometry.from_json(json.loads(json.dumps(asdict(done.geometry)))) == done.geometry


def test_threads_give_the_same_as_one() -> None:
    spec = replace(KEEP, spacing=(1.0, 1.2, 0.8), intensity="zscore", crop_foreground=True)
    images = [volume_of((20 + i, 60, 64), "LPS", (1.0, 1.0, 2.5), channels=2) for i in range(8)]
    alone = [prepare_case(image, None, id="a", spec=spec).image for image in images]
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda image: prepare_case(image, None, id="a", spec=spec).image, images * 3))
    assert all(np.array_equal(a, b) for a, b in zip(alone * 3, together, strict=True))
    assert torch.get_num_threads() == threads


def test_one_torch_thread_leaves_the_setting_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        inside: list[int] = []
        meeting = threading.Barrier(4)

        def work(wait: bool) -> None:
            with one_torch_thread():
                if wait:
                    meeting.wait(10)
                inside.append(torch.get_num_threads())

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, [True] * 4))
        work(False)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 3
        assert inside == [1] * 5
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (replace(KEEP, dtype="float16"), r"case x7: .*prepare\.dtype=float32"),
        (replace(KEEP, spacing=(-1, 1, 1)), r"case x7: prepare\.spacing"),
        (replace(KEEP, intensity="window"), r"prepare\.window"),
    ],
)
def test_errors_name_the_case(spec: PrepareConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_case(Volume(np.full((1, 2, 2, 2), 1e6), np.eye(4)), None, id="x7", spec=spec)


@pytest.mark.parametrize("codes", ["RAS", "PIL"])
def test_a_voxel_that_flattens_a_case_is_named_by_its_place_in_the_file(codes: str) -> None:
    volume = volume_of((12, 14, 16), codes, dtype=np.float32, channels=2)
    spec = replace(KEEP, intensity="zscore", spacing=(2, 2, 2), crop_foreground=True)
    usual = prepare_case(volume, None, id="x7", spec=spec).image
    assert usual.std((1, 2, 3)).min() > 0.5
    volume.array[1, 3, 5, 7] = 3e38
    with pytest.raises(ValueError, match=r"case x7: .* = \(3, 5, 7\) of channel 1 holds 3e\+38"):
        prepare_case(volume, None, id="x7", spec=spec)
    windowed = replace(spec, intensity="window", window=(0.0, 100.0))
    assert prepare_case(volume, None, id="x7", spec=windowed).image.max() == 1
