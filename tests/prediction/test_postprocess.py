from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.prediction.postprocess import Cleaning, postprocessed, read_cleanings, write_cleanings


def components(mask: np.ndarray) -> list[set[tuple[int, ...]]]:
    """By flooding, over faces, edges and corners."""
    left, result = set(map(tuple, np.argwhere(mask))), []
    while left:
        group, edge = set(), [left.pop()]
        while edge:
            voxel = edge.pop()
            group.add(voxel)
            near = {other for other in left if max(abs(a - b) for a, b in zip(voxel, other, strict=True)) <= 1}
            left -= near
            edge += near
        result.append(group)
    return result


@st.composite
def maps(draw: st.DrawFn) -> np.ndarray:
    shape = (draw(st.integers(1, 4)), draw(st.integers(3, 7)), draw(st.integers(3, 7)))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from((np.uint8, np.uint16, np.int16)))
    return np.where(rng.random(shape) < draw(st.sampled_from((0.1, 0.5))), rng.integers(1, 3, shape), 0).astype(dtype)


@given(maps())
def test_the_largest_component(label: np.ndarray) -> None:
    before = label.copy()
    result = postprocessed(label, {1: Cleaning(keep_largest=True)}, (1.0, 1.0, 1.0))
    assert np.array_equal(label, before)
    assert result.dtype == label.dtype
    assert np.array_equal(result == 2, label == 2)
    groups = components(label == 1)
    stays = set(map(tuple, np.argwhere(result == 1)))
    assert (stays in groups and len(stays) == max(map(len, groups))) if groups else not stays


@given(maps(), st.sampled_from((0.0, 2.0, 4.1)))
def test_small_components(label: np.ndarray, least: float) -> None:
    result = postprocessed(label, {2: Cleaning(min_volume_mm3=least)}, (0.5, 1.0, 2.0))
    stays = {voxel for group in components(label == 2) if len(group) >= least for voxel in group}
    assert set(map(tuple, np.argwhere(result == 2))) == stays
    assert np.array_equal(result == 1, label == 1)


def test_holes_are_filled_but_not_over_other_classes() -> None:
    label = np.zeros((5, 5, 5), np.uint8)
    label[1:4, 1:4, 1:4] = 1
    label[2, 2, 2] = 0
    assert postprocessed(label, {1: Cleaning(fill_holes=True)}, (1.0, 1.0, 1.0))[2, 2, 2] == 1
    label[2, 2, 2] = 2
    assert postprocessed(label, {1: Cleaning(fill_holes=True)}, (1.0, 1.0, 1.0))[2, 2, 2] == 2
    flat = np.zeros((1, 5, 5), np.uint8)
    flat[0, 1:4, 1:4] = 1
    flat[0, 2, 2] = 0
    assert postprocessed(flat, {1: Cleaning(fill_holes=True)}, (1.0, 1.0, 1.0))[0, 2, 2] == 1
    across = flat.reshape(5, 1, 5)  # one slice of a volume, which encloses nothing
    assert np.array_equal(postprocessed(across, {1: Cleaning(fill_holes=True)}, (1.0, 1.0, 1.0)), across)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9: {keep_largest: true}", "9: the networks have no such label value"),
        ("1: yes", "1: no mapping"),
        ("1: {keep_larges: true}", "1.keep_larges"),
    ],
)
def test_a_file_of_another_form(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "postprocessing.yaml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_cleanings(tmp_path, {"0": "background", "1": "a"})


def test_runs_that_differ_are_not_cleaned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = {"0": "background", "1": "a"}
    one, two = tmp_path / "one", tmp_path / "two"
    for run in (one, two):
        (run / "checkpoints").mkdir(parents=True)
    write_cleanings(one, {1: Cleaning(keep_largest=True)})
    assert read_cleanings(one / "checkpoints/best.pt", labels) == {1: Cleaning(keep_largest=True)}
    assert not caplog.text
    assert read_cleanings([one, two], labels) == {}
    assert "differ in their post-processing" in caplog.text
    write_cleanings(two, {1: Cleaning(keep_largest=True)})
    assert read_cleanings([one, two / "checkpoints/best.pt"], labels) == {1: Cleaning(keep_largest=True)}
