from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from hasten.cases import phantom
from hasten.cases.phantom import make_phantom, write_phantoms
from hasten.cases.read import read_image, read_label
from hasten.cases.sources import load_case_set


@settings(max_examples=30, deadline=None)
@given(
    index=st.integers(0, 10_000),
    seed=st.integers(0, 10_000),
    depth=st.sampled_from((1, 8, 13, 24)),
    height=st.integers(16, 48),
    width=st.integers(16, 48),
    spacing=st.tuples(*[st.floats(0.3, 6.0)] * 3),
)
def test_any_size_holds_a_spleen_on_the_left(index, seed, depth, height, width, spacing) -> None:
    shape = (depth, height, width)
    image, label = make_phantom(index, shape=shape, spacing=spacing, seed=seed)
    assert (image.dtype, image.shape) == (np.int16, shape)
    assert (label.dtype, label.shape) == (np.uint8, shape)
    assert set(np.unique(label)) == {0, 1}
    assert np.argwhere(label)[:, 2].mean() < width / 2


def test_pure_function_of_its_arguments() -> None:
    shape = (12, 32, 40)
    image, label = make_phantom(3, shape=shape)
    make_phantom(5, shape=shape)
    again, label_again = make_phantom(3, shape=shape)
    np.testing.assert_array_equal(image, again)
    np.testing.assert_array_equal(label, label_again)
    for other in (make_phantom(4, shape=shape), make_phantom(3, shape=shape, seed=1)):
        assert (other[0] != image).mean() > 0.5
        assert (other[1] != label).any()


def test_bounding_boxes_cut_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tight = [make_phantom(i, shape=(24, 64, 64)) for i in range(8)]
    monkeypatch.setattr(phantom, "_MARGIN", 5.0)
    for index, (image, label) in enumerate(tight):
        wide_image, wide_label = make_phantom(index, shape=(24, 64, 64))
        np.testing.assert_array_equal(image, wide_image)
        np.testing.assert_array_equal(label, wide_label)


def best_band_dice(image: np.ndarray, label: np.ndarray) -> float:
    """Best Dice of any intensity band low..high, of all voxels that it holds."""
    edges = np.arange(-300, 402, 6)
    below_all = np.cumsum(np.histogram(image, edges)[0])
    below_spleen = np.cumsum(np.histogram(image[label > 0], edges)[0])
    in_all = below_all[None] - below_all[:, None]
    in_spleen = below_spleen[None] - below_spleen[:, None]
    return float((2 * in_spleen / np.maximum(in_all + label.sum(), 1)).max())


@pytest.mark.parametrize("index", range(6))
def test_intensity_alone_does_not_find_the_spleen(index: int) -> None:
    image, label = make_phantom(index, shape=(32, 96, 96), spacing=(7.5, 2.7, 2.7))
    smooth = ndimage.uniform_filter(image.astype(np.float32), 3)
    assert best_band_dice(image, label) < 0.6
    assert best_band_dice(smooth, label) < 0.6
    parts, num_parts = ndimage.label(smooth > smooth[label > 0].mean() - 40)
    largest_overlap = max(
        2 * np.count_nonzero(label[parts == k]) / (np.count_nonzero(parts == k) + label.sum())
        for k in range(1, num_parts + 1)
    )
    assert largest_overlap < 0.9  # it touches something of its own intensity, so a threshold and a click do not do


def test_looks_like_ct() -> None:
    image, label = make_phantom(0, shape=(32, 128, 128))
    spleen = image[label > 0]
    assert 0 < spleen.mean() < 100
    assert 15 < spleen.std() < 45
    assert image[0, 0, 0] < -900
    assert image.max() > 300
    assert image.min() >= -1024
    assert 0.002 < label.mean() < 0.02
    # An ellipsoid's own moments rebuild it; the deformed spleen differs from that ellipsoid.
    points = np.argwhere(label)
    offset = points - points.mean(0)
    inverse = np.linalg.inv(np.cov(offset.T))
    grid = np.moveaxis(np.indices(label.shape), 0, -1) - points.mean(0)
    ellipsoid = np.einsum("dhwi,ij,dhwj->dhw", grid, inverse, grid) < 5
    dice = 2 * np.count_nonzero(ellipsoid & (label > 0)) / (ellipsoid.sum() + label.sum())
    assert 0.7 < dice < 0.97


def test_written_folder_is_a_decathlon_set(tmp_path: Path) -> None:
    shape, spacing = (24, 40, 44), (2.5, 1.0, 1.5)
    out = write_phantoms(tmp_path / "phantoms", num_cases=3, shape=shape, spacing=spacing)
    cases = load_case_set(out)
    assert (cases.name, cases.modality, cases.channels, cases.spatial_dims) == ("Phantom", "CT", ("CT",), 3)
    assert cases.labels == {0: "background", 1: "spleen"}
    assert [case.id for case in cases.cases] == ["phantom_000", "phantom_001", "phantom_002"]
    for index, case in enumerate(cases.cases):
        image = read_image(case)
        expected_image, expected_label = make_phantom(index, shape=shape, spacing=spacing)
        np.testing.assert_array_equal(image.array[0], expected_image)
        assert image.array.dtype == np.int16
        assert image.spacing == spacing
        np.testing.assert_array_equal(read_label(case, cases.labels, image), expected_label)


def test_threads_do_not_change_the_files(tmp_path: Path) -> None:
    for threads in (1, 4):
        write_phantoms(tmp_path / str(threads), num_cases=4, shape=(12, 24, 24), num_threads=threads)
    files = sorted(p.relative_to(tmp_path / "1") for p in (tmp_path / "1").rglob("*") if p.is_file())
    assert len(files) == 9
    for file in files:
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "4" / file).read_bytes()


def test_written_pictures(tmp_path: Path) -> None:
    out = write_phantoms(tmp_path / "flat", num_cases=3, shape=(96, 64, 80), spatial_dims=2)
    cases = load_case_set(out)
    assert (cases.spatial_dims, cases.channels) == (2, ("image",))
    assert cases.labels == {0: "background", 1: "spleen"}
    for case in cases.cases:
        image = read_image(case)
        assert image.array.shape == (1, 1, 64, 80)
        assert image.array.dtype == np.uint8
        assert read_label(case, cases.labels, image).any()


@pytest.mark.parametrize(
    "arguments", [{"num_cases": 0}, {"spatial_dims": 4}, {"shape": (4, 40, 40)}, {"shape": (24, 8, 40)}]
)
def test_refused(tmp_path: Path, arguments: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="phantom"):
        write_phantoms(tmp_path, **arguments)  # type: ignore[arg-type]
