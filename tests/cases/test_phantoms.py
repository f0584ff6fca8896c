"""Phantoms: one contract for all of them, and what makes each hard enough to learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from hasten.cases.read import read_image, read_label
from hasten.cases.sources import load_case_set
from hasten.phantoms import organs as phantom
from hasten.phantoms.cells import make_cells, write_cells
from hasten.phantoms.hippocampus import LABELS as PARTS
from hasten.phantoms.hippocampus import make_hippocampus, write_hippocampi
from hasten.phantoms.organs import make_phantom, write_phantoms
from hasten.phantoms.spheres import make_spheres, write_spheres
from hasten.phantoms.tumours import CHANNELS, LABELS, make_tumour_phantom, write_tumour_phantoms

COARSE: dict[str, Any] = {"shape": (28, 36, 28), "spacing": (5.5, 5.5, 5.5)}
INDEX = st.integers(0, 10_000)


class Kind(NamedTuple):
    make: Callable[..., tuple[np.ndarray, np.ndarray]]
    write: Callable[..., Path]
    options: dict[str, Any]
    """Of both, for a small one."""
    labels: dict[int, str]
    channels: tuple[str, ...]
    wrong: list[dict[str, Any]]


KINDS = {
    "spleen": Kind(
        make_phantom, write_phantoms, {"shape": (24, 40, 44), "spacing": (2.5, 1.0, 1.5)},
        {0: "background", 1: "spleen"}, ("CT",), [{"shape": (4, 40, 40)}, {"shape": (24, 8, 40)}, {"num_cases": 0}],
    ),
    "tumours": Kind(
        make_tumour_phantom, write_tumour_phantoms, {"shape": (16, 20, 18), "spacing": (8.0, 9.0, 8.0)}, LABELS,
        CHANNELS, [{"shape": (8, 32, 32)}, {"num_cases": 0}],
    ),
    "hippocampus": Kind(
        make_hippocampus, write_hippocampi, {"shape": (20, 24, 20)}, PARTS, ("MRI",),
        [{"shape": (8, 32, 32)}, {"num_cases": 0}],
    ),
    "cells": Kind(
        make_cells, write_cells, {"shape": (64, 80), "radius": 12.0}, {0: "background", 1: "cell"}, ("image",),
        [{"shape": (8, 90)}, {"radius": 1.0}, {"filled": 0.0}, {"filled": 1.5}, {"num_cases": 0}, {"value": 256}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_phantom_is_a_pure_function_of_its_arguments(name: str) -> None:
    make, options = KINDS[name].make, KINDS[name].options
    image, label = make(3, **options)
    make(5, **options)
    for one, other in zip((image, label), make(3, **options), strict=True):
        np.testing.assert_array_equal(one, other)
    for other, _ in (make(4, **options), make(3, **options, seed=1)):
        assert other.shape != image.shape or (other != image).any()


@pytest.mark.parametrize("name", KINDS)
def test_a_written_set_holds_what_is_made_whatever_the_threads(tmp_path: Path, name: str) -> None:
    kind = KINDS[name]
    for threads in (1, 3):
        kind.write(tmp_path / str(threads), num_cases=3, num_threads=threads, seed=2, **kind.options)
    cases = load_case_set(tmp_path / "1")
    assert (cases.labels, cases.channels) == (kind.labels, kind.channels)
    assert len(cases.cases) == 3
    for index, case in enumerate(cases.cases):
        assert case.id.endswith(f"_{index:03d}")
        image, label = kind.make(index, seed=2, **kind.options)
        read = read_image(case)
        assert read.array.dtype == image.dtype
        np.testing.assert_array_equal(read.array.squeeze(), image)
        np.testing.assert_array_equal(read_label(case, cases.labels, read).squeeze(), label)
        if "spacing" in kind.options:
            assert read.spacing == pytest.approx(kind.options["spacing"])
    for path in (each for each in (tmp_path / "1").rglob("*") if each.is_file()):
        assert path.read_bytes() == (tmp_path / "3" / path.relative_to(tmp_path / "1")).read_bytes()


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name, kind in KINDS.items() for wrong in kind.wrong])
def test_impossible_phantoms_are_refused(tmp_path: Path, name: str, wrong: dict[str, Any]) -> None:
    kind = KINDS[name]
    with pytest.raises(ValueError, match="needs"):
        kind.write(tmp_path, **{"num_cases": 1, **kind.options, **wrong})


def test_pictures_of_a_spleen_and_cells_of_another_value(tmp_path: Path) -> None:
    cases = load_case_set(write_phantoms(tmp_path / "flat", num_cases=3, shape=(96, 64, 80), spatial_dims=2))
    assert (cases.spatial_dims, cases.channels, cases.labels) == (2, ("image",), {0: "background", 1: "spleen"})
    for case in cases.cases:
        image = read_image(case)
        assert (image.array.shape, image.array.dtype) == ((1, 1, 64, 80), np.uint8)
        assert read_label(case, cases.labels, image).any()
    with pytest.raises(ValueError, match="phantom"):
        write_phantoms(tmp_path, spatial_dims=4)
    cells = load_case_set(write_cells(tmp_path / "cells", num_cases=1, shape=(64, 80), radius=12, value=255))
    assert cells.labels == {0: "background", 255: "cell"}


@settings(max_examples=30, deadline=None)
@given(
    index=INDEX,
    seed=INDEX,
    depth=st.sampled_from((1, 8, 13, 24)),
    sides=st.tuples(*[st.integers(16, 48)] * 2),
    spacing=st.tuples(*[st.floats(0.3, 6.0)] * 3),
)
def test_any_size_holds_a_spleen_on_the_left(index, seed, depth, sides, spacing) -> None:
    image, label = make_phantom(index, shape=(depth, *sides), spacing=spacing, seed=seed)
    assert (image.dtype, image.shape, label.dtype) == (np.int16, (depth, *sides), np.uint8)
    assert set(np.unique(label)) == {0, 1}
    assert np.argwhere(label)[:, 2].mean() < sides[1] / 2


@settings(max_examples=20, deadline=None)
@given(
    index=INDEX,
    seed=INDEX,
    shape=st.tuples(*[st.integers(16, 30)] * 3),
    # Voxels of 1 x 9 mm leave next to nothing of so small a brain.
    spacing=st.tuples(*[st.floats(2.0, 6.0)] * 3),
)
def test_any_size_holds_a_brain_with_a_tumour(index, seed, shape, spacing) -> None:
    image, label = make_tumour_phantom(index, shape=shape, spacing=spacing, seed=seed)
    assert (image.dtype, image.shape, label.dtype, label.shape) == (np.int16, (4, *shape), np.uint8, shape)
    assert (label > 0).any()
    brain = image[0] > 0
    assert 0.005 < brain.mean() < 0.9
    assert brain[label > 0].mean() > 0.98
    for channel in image:
        np.testing.assert_array_equal(channel > 0, brain)


@settings(max_examples=30, deadline=None)
@given(index=INDEX, seed=INDEX, shape=st.tuples(*[st.integers(28, 48)] * 3))
def test_any_size_holds_both_parts_of_a_hippocampus_the_front_one_in_front(index, seed, shape) -> None:
    _, label = make_hippocampus(index, shape=shape, seed=seed)
    assert all(0.9 * most - 1 <= side <= most for side, most in zip(label.shape, shape, strict=True))
    assert set(np.unique(label)) == set(PARTS)
    assert np.argwhere(label == 1)[:, 1].mean() > np.argwhere(label == 2)[:, 1].mean()
    parts = np.bincount(ndimage.label(label > 0)[0].ravel())[1:]
    assert parts.max() > 0.9 * parts.sum()


def test_bounding_boxes_cut_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tight = [make_phantom(i, shape=(24, 64, 64)) for i in range(8)]
    monkeypatch.setattr(phantom, "_MARGIN", 5.0)
    for index, made in enumerate(tight):
        for one, other in zip(made, make_phantom(index, shape=(24, 64, 64)), strict=True):
            np.testing.assert_array_equal(one, other)


def best_band_dice(image: np.ndarray, label: np.ndarray) -> float:
    """Best Dice of any intensity band low..high, of all voxels that it holds."""
    edges = np.arange(-300, 402, 6)
    below_all, below_spleen = (np.cumsum(np.histogram(part, edges)[0]) for part in (image, image[label > 0]))
    in_all, in_spleen = (below[None] - below[:, None] for below in (below_all, below_spleen))
    return float((2 * in_spleen / np.maximum(in_all + label.sum(), 1)).max())


@pytest.mark.parametrize("index", range(6))
def test_intensity_alone_does_not_find_the_spleen(index: int) -> None:
    image, label = make_phantom(index, shape=(32, 96, 96), spacing=(7.5, 2.7, 2.7))
    smooth = ndimage.uniform_filter(image.astype(np.float32), 3)
    assert best_band_dice(image, label) < 0.6
    assert best_band_dice(smooth, label) < 0.6
    parts, num_parts = ndimage.label(smooth > smooth[label > 0].mean() - 40)
    sizes, hits = np.bincount(parts.ravel()), np.bincount(parts.ravel(), label.ravel())
    assert num_parts > 0
    # It touches something of its own intensity, so a threshold and a click do not do.
    assert (2 * hits[1:] / (sizes[1:] + label.sum())).max() < 0.9


def test_a_spleen_looks_like_ct() -> None:
    image, label = make_phantom(0, shape=(32, 128, 128))
    spleen = image[label > 0]
    assert 0 < spleen.mean() < 100
    assert 15 < spleen.std() < 45
    assert image[0, 0, 0] < -900
    assert image.max() > 300
    assert 0.002 < label.mean() < 0.02


@pytest.mark.parametrize(("filled", "share"), [(0.55, (0.35, 0.65)), (1.0, (0.65, 0.92))])
def test_cells_touch_and_are_told_apart(filled: float, share: tuple[float, float]) -> None:
    radius = 20.0
    image, label = make_cells(0, shape=(512, 512), radius=radius, filled=filled)
    assert share[0] < label.mean() < share[1]
    parts, count = ndimage.label(label)
    sizes = np.bincount(parts.ravel())[1:] / (np.pi * radius**2)
    assert count > 0.3 * 512**2 / (np.pi * radius**2)
    assert sizes.max() < 8  # hardly any two run together
    # Many neighbours are only the thin line apart: closing it joins them.
    assert ndimage.label(ndimage.binary_closing(label, iterations=4))[1] < 0.6 * count
    if filled == 1:  # walls are dark, and the noise does not hide them
        assert image[label == 0].mean() < 0.85 * image[label == 1].mean()


def test_tumours_spread_over_two_decades_and_some_do_not_enhance() -> None:
    labels = [make_tumour_phantom(index, **COARSE)[1] for index in range(100)]
    whole = np.array([(label > 0).sum() * np.prod(COARSE["spacing"]) / 1000 for label in labels])
    assert 2.5 <= whole.min() < 8
    assert 150 < whole.max() <= 305
    assert 0.75 < np.log(whole).std() < 1.2  # a log-normal of 1.1, cut off at both ends
    assert 0.08 < np.mean([not (label == 3).any() for label in labels]) < 0.25


def test_contrasts_are_those_of_the_sequences_and_go_together() -> None:
    flair, t1, gadolinium, t2 = range(4)
    correlations = []
    for index in range(12):
        image, label = make_tumour_phantom(index, **COARSE)
        rest = (image[0] > 0) & (label == 0)
        plain = [float(channel[rest].mean()) for channel in image]
        correlations.append(np.corrcoef(image[t1][rest], image[t2][rest])[0, 1])
        if (label == 1).any():
            assert image[flair][label == 1].mean() > 1.15 * plain[flair]
        if (label == 3).any():
            assert image[gadolinium][label == 3].mean() / plain[gadolinium] > 1.3 * (
                image[t1][label == 3].mean() / plain[t1]
            )
    assert np.mean(correlations) < -0.3  # CSF is dark in one and bright in the other


def test_spheres_are_those_of_monais_test_under_its_names(tmp_path: Path) -> None:
    from monai.data import create_test_image_3d

    generator = np.random.RandomState(0)
    for image, label in make_spheres(num_cases=3, shape=(72, 64, 80)):
        theirs, classes = create_test_image_3d(80, 64, 72, num_seg_classes=1, random_state=generator)
        np.testing.assert_allclose(image, theirs.T, atol=1e-6)
        np.testing.assert_array_equal(label, classes.T)
    cases = load_case_set(write_spheres(tmp_path, num_cases=12, shape=(61, 61, 61)))
    assert sorted(case.id for case in cases.cases)[:4] == ["img0", "img1", "img10", "img11"]
    with pytest.raises(ValueError, match="over 60 voxels a side"):
        make_spheres(shape=(60, 80, 80))
