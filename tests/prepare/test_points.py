from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hasten.cases.labels import IGNORED
from hasten.prepare.foreground import foreground_points


@given(st.integers(1, 9), st.integers(1, 6), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_points_are_voxels_of_their_class(size: int, classes: int, limit: int, seed: int) -> None:
    label = np.random.default_rng(seed).integers(0, classes, (size, 3, 4)).astype(np.uint8)
    points, counts = foreground_points(label, classes, limit, seed)
    assert len(points) == classes - 1
    assert counts == tuple(int((label == index).sum()) for index in range(1, classes))
    for index, chosen in enumerate(points, start=1):
        voxels = np.flatnonzero(label == index)
        assert chosen.dtype == np.int32
        assert len(chosen) == min(limit, len(voxels))
        assert np.all(np.diff(chosen) > 0)
        assert np.isin(chosen, voxels).all()
    again, _ = foreground_points(label, classes, limit, seed)
    assert all(np.array_equal(a, b) for a, b in zip(points, again, strict=True))


@given(st.integers(1, 9), st.integers(2, 6), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_ignored_voxels_are_as_if_they_were_background(size: int, classes: int, limit: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, (size, 3, 4)).astype(np.uint8)
    ignored = rng.random(label.shape) < 0.5
    points, counts = foreground_points(np.where(ignored, IGNORED, label).astype(np.uint8), classes, limit, seed)
    wanted, wanted_counts = foreground_points(np.where(ignored, 0, label).astype(np.uint8), classes, limit, seed)
    assert counts == wanted_counts
    assert all(np.array_equal(a, b) for a, b in zip(points, wanted, strict=True))
