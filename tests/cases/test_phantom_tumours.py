from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from hasten.cases.phantom_tumours import CHANNELS, LABELS, make_tumour_phantom, write_tumour_phantoms
from hasten.cases.read import read_image, read_label
from hasten.cases.sources import load_case_set

COARSE = {"shape": (28, 36, 28), "spacing": (5.5, 5.5, 5.5)}


@settings(max_examples=20)
@given(
    index=st.integers(0, 10_000),
    seed=st.integers(0, 10_000),
    shape=st.tuples(*[st.integers(16, 30)] * 3),
    spacing=st.tuples(*[st.floats(1.0, 9.0)] * 3),
)
def test_any_size_holds_a_brain_with_a_tumour(index, seed, shape, spacing) -> None:
    image, label = make_tumour_phantom(index, shape=shape, spacing=spacing, seed=seed)
    assert (image.dtype, image.shape) == (np.int16, (4, *shape))
    assert (label.dtype, label.shape) == (np.uint8, shape)
    assert set(np.unique(label)) <= set(LABELS)
    assert (label > 0).any()
    brain = image[0] > 0
    assert 0.005 < brain.mean() < 0.9
    for channel in image:
        np.testing.assert_array_equal(channel > 0, brain)
        assert channel.min() == 0
    assert brain[label > 0].mean() > 0.98


def test_pure_function_of_its_arguments() -> None:
    image, label = make_tumour_phantom(3, **COARSE)
    make_tumour_phantom(5, **COARSE)
    again, label_again = make_tumour_phantom(3, **COARSE)
    np.testing.assert_array_equal(image, again)
    np.testing.assert_array_equal(label, label_again)
    for other in (make_tumour_phantom(4, **COARSE), make_tumour_phantom(3, **COARSE, seed=1)):
        assert (other[1] != label).any()
        assert (other[0] != image).any()


def test_volumes_spread_over_two_decades_and_some_tumours_do_not_enhance() -> None:
    labels = [make_tumour_phantom(index, **COARSE)[1] for index in range(100)]
    voxel_ml = np.prod(COARSE["spacing"]) / 1000
    whole = np.array([(label > 0).sum() * voxel_ml for label in labels])
    assert 2.5 <= whole.min() < 8
    assert 150 < whole.max() <= 305
    assert 0.75 < np.log(whole).std() < 1.2  # a log-normal of 1.1, cut off at both ends
    assert 30 < np.median(whole) < 65
    without = np.mean([not (label == 3).any() for label in labels])
    assert 0.08 < without < 0.25
    shares = np.array([(label > 1).sum() / (label > 0).sum() for label in labels])
    assert shares.min() > 0.05
    assert shares.max() < 0.8


def test_what_enhances_is_a_rim_around_what_does_not() -> None:
    """Inner voxels of the core are mostly not enhancing, outer ones mostly are."""
    inner, outer = [], []
    for index in range(30):
        label = make_tumour_phantom(index, shape=(48, 56, 48), spacing=(3.3, 3.3, 3.3))[1]
        core = label > 1
        deep = ndimage.binary_erosion(core, iterations=2)
        if not (label == 3).any() or not deep.any():
            continue
        inner.append((label[deep] == 3).mean())
        outer.append((label[core & ~ndimage.binary_erosion(core)] == 3).mean())
    assert len(inner) > 10
    assert np.mean(outer) > np.mean(inner) + 0.2


def test_contrasts_are_those_of_the_sequences_and_go_together() -> None:
    flair, t1, gadolinium, t2 = range(4)
    correlations, darker = [], []
    for index in range(12):
        image, label = make_tumour_phantom(index, **COARSE)
        brain = image[0] > 0
        rest = brain & (label == 0)
        mean = {
            value: [float(channel[where].mean()) for channel in image]
            for value, where in (("rest", rest), (1, label == 1), (3, label == 3))
            if where.any()
        }
        if 1 in mean:
            assert mean[1][flair] > 1.15 * mean["rest"][flair]
            darker.append(mean[1][t1] / mean["rest"][t1])
        if 3 in mean:
            brighter = mean[3][gadolinium] / mean["rest"][gadolinium]
            assert brighter > 1.3 * mean[3][t1] / mean["rest"][t1]
        correlations.append(np.corrcoef(image[t1][rest], image[t2][rest])[0, 1])
    assert np.mean(darker) < 0.95
    assert np.mean(correlations) < -0.3  # CSF is dark in one and bright in the other


def test_written_folder_is_a_decathlon_set_of_four_channels_whatever_the_threads(tmp_path: Path) -> None:
    shape, spacing = (16, 20, 18), (8.0, 9.0, 8.0)
    for threads in (1, 3):
        write_tumour_phantoms(
            tmp_path / str(threads), num_cases=3, shape=shape, spacing=spacing, num_threads=threads, seed=2
        )
    cases = load_case_set(tmp_path / "1")
    assert (cases.channels, cases.labels, cases.spatial_dims) == (CHANNELS, LABELS, 3)
    assert [case.id for case in cases.cases] == ["brain_000", "brain_001", "brain_002"]
    image, label = make_tumour_phantom(1, shape=shape, spacing=spacing, seed=2)
    case = cases.cases[1]
    read = read_image(case)
    np.testing.assert_array_equal(read.array, image)
    assert read.spacing == pytest.approx(spacing)
    np.testing.assert_array_equal(read_label(case, cases.labels, read), label)
    for path in sorted((tmp_path / "1").rglob("*.gz")):
        assert path.read_bytes() == (tmp_path / "3" / path.relative_to(tmp_path / "1")).read_bytes()


def test_impossible_phantoms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs 16 voxels a side"):
        make_tumour_phantom(0, shape=(8, 32, 32))
    with pytest.raises(ValueError, match="num_cases is 0"):
        write_tumour_phantoms(tmp_path, num_cases=0)
