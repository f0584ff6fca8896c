from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from hasten.cases.phantom_hippocampus import LABELS, make_hippocampus, write_hippocampi
from hasten.cases.sources import load_case_set


@settings(max_examples=30)
@given(index=st.integers(0, 10_000), seed=st.integers(0, 10_000), shape=st.tuples(*[st.integers(28, 48)] * 3))
def test_any_size_holds_both_parts_the_front_one_in_front(index, seed, shape) -> None:
    image, label = make_hippocampus(index, shape=shape, seed=seed)
    assert image.dtype == np.int16
    assert image.shape == label.shape
    assert all(0.9 * most - 1 <= side <= most for side, most in zip(label.shape, shape, strict=True))
    assert set(np.unique(label)) == set(LABELS)
    assert np.argwhere(label == 1)[:, 1].mean() > np.argwhere(label == 2)[:, 1].mean()
    parts = np.bincount(ndimage.label(label > 0)[0].ravel())[1:]
    assert parts.max() > 0.9 * parts.sum()


def test_pure_function_of_its_arguments() -> None:
    image, label = make_hippocampus(3)
    make_hippocampus(5)
    np.testing.assert_array_equal(image, make_hippocampus(3)[0])
    np.testing.assert_array_equal(label, make_hippocampus(3)[1])
    assert make_hippocampus(3, seed=1)[0].sum() != image.sum()


def test_written_folder_is_a_decathlon_set(tmp_path: Path) -> None:
    cases = load_case_set(write_hippocampi(tmp_path, num_cases=3, shape=(20, 24, 20)))
    assert (cases.labels, cases.modality, len(cases.cases)) == (LABELS, "MRI", 3)


def test_impossible_phantoms_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs 16 voxels a side"):
        make_hippocampus(0, shape=(8, 32, 32))
    with pytest.raises(ValueError, match="num_cases is 0"):
        write_hippocampi(tmp_path, num_cases=0)
