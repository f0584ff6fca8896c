from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hasten.cases.labels import IGNORED, distinct_values, find_labels, parse_labels, to_class_index

WHERE = Path("label.nii.gz")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"0": "background", "2": "b", "1": "a"}, {0: "background", 1: "a", 2: "b"}),
        ({"background": 0, "a": 1, "b": 7}, {0: "background", 1: "a", 7: "b"}),
        (["background", "a"], {0: "background", 1: "a"}),
        ({"background": 0.0, "a": 1.0}, {0: "background", 1: "a"}),
        ({"255": "membrane"}, {0: "background", 255: "membrane"}),
    ],
)
def test_parse(raw: object, expected: dict[int, str]) -> None:
    labels = parse_labels(raw, "dataset.json")
    assert labels == expected
    assert list(labels) == sorted(expected)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        ({}, "must map"),
        ("spleen", "must map"),
        ({"0": "background"}, "only the background"),
        ({"0": "background", "-1": "a"}, "is no class; give"),
        ({"0": "background", "1": "a", "2": "a"}, "share a name"),
        ({"0": "background", "1": "a", "01": "b"}, "declared twice"),
        ({"background": 0, "whole": [1, 2]}, "is no class; give"),
        ({"background": 0, "a": 1.5}, "is no class; give"),
        ({"background": 0.5, "a": 1}, "is no class; give"),
        ({"background": 0, "a": 1, "ignore": 2}, "is no class; give"),
        ({str(v): f"c{v}" for v in range(256)}, "256 classes"),
        ({"0": "background", "1": ""}, "is no class; give"),
        ({"0": "background", "1": None}, "is no class; give"),
        ({"0": "background", "1": [1]}, "is no class; give"),
        ({"0": "background", "9" * 5000: "a"}, "is no class; give"),
        ({"0": "background", "²": "a"}, "is no class; give"),
        ({"0": "background", "--1": "a"}, "is no class; give"),
    ],
)
def test_parse_refuses(raw: object, what: str) -> None:
    with pytest.raises(ValueError, match=what) as error:
        parse_labels(raw, "dataset.json")
    assert str(error.value).startswith("dataset.json: ")


@given(
    values=st.sets(st.one_of(st.integers(1, 6), st.integers(1, 120), st.integers(1, 2**30)), min_size=1, max_size=8),
    dtype=st.sampled_from(("uint8", "int8", "int16", "uint32", "int64", "float32", "float64")),
    seed=st.integers(0, 99),
)
def test_mapping_agrees_with_a_loop(values: set[int], dtype: str, seed: int) -> None:
    limit = 2**24 if dtype == "float32" else 2**53 if dtype == "float64" else np.iinfo(dtype).max
    declared = sorted({0, *values})
    labels = {value: f"v{value}" for value in declared}
    holds = [value for value in declared if value <= limit]
    array = np.random.default_rng(seed).choice(holds, (3, 4, 5)).astype(dtype)
    index = to_class_index(array, labels, WHERE)
    assert index.dtype == np.uint8
    assert index.flags.c_contiguous
    assert index.ravel().tolist() == [declared.index(int(v)) for v in array.ravel()]


@pytest.mark.parametrize("declared", [(0, 1, 2), (0, 1, 5), (0, 5, 2**25)])
@pytest.mark.parametrize("dtype", ["int16", "int64", "float32"])
@pytest.mark.parametrize("wrong", [-3, 3, 4, 300])
def test_undeclared_values_are_named(declared: tuple[int, ...], dtype: str, wrong: int) -> None:
    array = np.zeros((2, 3, 4), dtype)
    array[1, 1, 1] = wrong
    with pytest.raises(ValueError) as error:
        to_class_index(array, {v: str(v) for v in declared}, WHERE)
    assert "label.nii.gz: " in str(error.value)
    assert f"not declared: {wrong}; declared are 0, " in str(error.value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.5, "0.5"), (np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf"), (1e30, "0 to 1e"), (2.25, "2.25")],
)
def test_values_that_are_no_integers(value: float, shown: str) -> None:
    array = np.zeros((2, 3, 4), np.float32)
    array[0, 0, 0] = value
    with pytest.raises(ValueError, match="must be integers") as error:
        to_class_index(array, {0: "background", 1: "a"}, WHERE)
    assert f"holds {shown}" in str(error.value)


@given(
    st.lists(st.integers(-200, 200), min_size=0, max_size=40),
    st.sampled_from(("int16", "int64", "uint8")),
    st.sampled_from((0, 2**40)),
)
def test_distinct_values(values: list[int], dtype: str, far: int) -> None:
    array = np.array([v % 256 if dtype == "uint8" else v for v in values] + [far] * (dtype == "int64"), dtype)
    assert distinct_values(array).tolist() == sorted({int(v) for v in array})


def write_masks(folder: Path, *masks: list[int]) -> list[Path]:
    paths = []
    for index, mask in enumerate(masks):
        paths.append(folder / f"{index}.png")
        Image.fromarray(np.array([mask], np.uint8)).save(paths[-1])
    return paths


def test_found_labels(tmp_path: Path) -> None:
    assert find_labels(write_masks(tmp_path, [0, 255], [255, 255]), "here") == {0: "background", 255: "class_1"}
    assert find_labels(write_masks(tmp_path, [3, 3], [1, 0]), "here") == {0: "background", 1: "class_1", 3: "class_2"}


@pytest.mark.parametrize(
    "masks",
    [
        [list(range(13)), [0, 0], list(range(28))],
        [[0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11], [0, 1, 2, 4, 5]],
        [list(range(count)) for count in (13, 14, 15, 16)],
        [list(range(13)), list(range(21))],
        [[0, 0], [1, 2, 3], [0, 4, 5, 6, 7, 8]],
        [list(range(60))],
    ],
)
def test_numbers_of_single_objects_are_no_classes(tmp_path: Path, masks: list[list[int]]) -> None:
    richest = max(range(len(masks)), key=lambda number: len(set(masks[number]) - {0}))
    with pytest.raises(ValueError, match=rf"{richest}\.png: holds \d+ values .*instances"):
        find_labels(write_masks(tmp_path, *masks), "here")


def test_classes_that_not_every_file_has_are_classes(tmp_path: Path) -> None:
    assert len(find_labels(write_masks(tmp_path, list(range(9)), list(range(8))), "here")) == 9
    assert len(find_labels(write_masks(tmp_path, list(range(9)), [0, 3]), "here")) == 9
    assert len(find_labels(write_masks(tmp_path, list(range(6)), [0, 1]), "here")) == 6
    assert len(find_labels(write_masks(tmp_path, list(range(14)), list(range(12))), "here")) == 14
    assert len(find_labels(write_masks(tmp_path, [1, 2, 3], [4, 5, 6], [1, 2, 3]), "here")) == 7
    assert len(find_labels(write_masks(tmp_path, [1], [2], [3], [4], [5], [6]), "here")) == 7


def test_grays_of_a_smoothed_mask_are_no_classes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1\.png: holds gray values between 0 and 255.*\b17, 40.*mask > 127"):
        find_labels(write_masks(tmp_path, [0, 255], [0, 17, 40, 99, 160, 231, 255]), "here")
    with pytest.raises(ValueError, match=r"0\.png: holds gray values"):
        find_labels(write_masks(tmp_path, list(range(256))[::3]), "here")
    assert len(find_labels(write_masks(tmp_path, [0, 51, 102, 153, 204, 255]), "here")) == 6
    assert len(find_labels(write_masks(tmp_path, [0, 128, 255]), "here")) == 3


def test_what_is_no_integer_is_shown_as_it_is_with_its_scaling(tmp_path: Path) -> None:
    values = np.array([[[0, 0.99999994]]], np.float32)
    nib.save(nib.Nifti1Image(values, np.eye(4)), tmp_path / "a.nii")
    with pytest.raises(ValueError, match=r"a\.nii: label values must be integers, but it holds 0\.99999994; store"):
        find_labels([tmp_path / "a.nii"], "here")
    image = nib.Nifti1Image(np.array([[[0, 255]]], np.uint8), np.eye(4))
    image.header.set_slope_inter(0.00392, 0)
    image.to_filename(tmp_path / "b.nii")
    with pytest.raises(ValueError, match=r"b\.nii: .* scales by scl_slope = 0\.0039\d+ and scl_inter = 0"):
        find_labels([tmp_path / "b.nii"], "here")


def test_found_labels_refuses(tmp_path: Path) -> None:
    for mask in ([0, 0], [0, 255]):
        with pytest.raises(ValueError, match="here: no label file holds anything but 0"):
            find_labels(write_masks(tmp_path, mask), "here", 255)


@given(
    values=st.sets(st.one_of(st.integers(1, 6), st.integers(1, 254), st.integers(1, 2**30)), min_size=1, max_size=5),
    ignore=st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_the_value_to_ignore_stands_apart_from_the_classes(values: set[int], ignore: int, seed: int) -> None:
    labels = {0: "background", **{value: f"c{value}" for value in values - {ignore}}}
    known = sorted(labels)
    array = np.random.default_rng(seed).choice([*known, ignore], (3, 4, 5))
    result = to_class_index(array, labels, Path("a.nii"), ignore)
    wanted = [IGNORED if value == ignore else known.index(value) for value in array.ravel()]
    assert result.dtype == np.uint8
    assert result.ravel().tolist() == wanted


def test_a_value_to_ignore_leaves_other_undeclared_values_an_error() -> None:
    array = np.array([[[0, 1, 9, 7]]])
    with pytest.raises(ValueError, match=r"a\.nii: .*not declared: 7; declared are 0, 1"):
        to_class_index(array, {0: "background", 1: "a"}, Path("a.nii"), 9)
    assert to_class_index(array[..., :3], {0: "background", 1: "a"}, Path("a.nii"), 9).tolist() == [[[0, 1, IGNORED]]]
    kept = np.array([[[0, 200]]], np.uint8)  # which can't hold the value to ignore
    assert to_class_index(kept, {0: "background", 200: "a"}, Path("a.nii"), 300).tolist() == [[[0, 1]]]
