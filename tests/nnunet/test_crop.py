"""Where patches are cut: as nnU-Net's data loader cuts them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.cache.arena import PointSets
from hasten.nnunet.batches import NnunetCrop
from hasten.sample.random import sample_key

Shape = tuple[int, int, int]
COUNT = 4000
ANNOTATED = (-1, 0, 1, 2)


def starts(crop: NnunetCrop, shape: Shape, sets: list[list[tuple[int, int, int]]], count: int = COUNT) -> torch.Tensor:
    rows = [np.array([np.ravel_multi_index(voxel, shape) for voxel in each], np.int32) for each in sets]
    counts = torch.tensor([[len(row) for row in rows]])
    points = PointSets(torch.from_numpy(np.concatenate(rows)), counts.cumsum(1) - counts, counts)
    key = sample_key(torch.tensor(0), torch.arange(count))
    return crop.start(key, torch.zeros(count, dtype=torch.int64), torch.tensor(shape).expand(count, 3), points)


@settings(max_examples=30, deadline=None)
@given(shape=st.tuples(*[st.integers(1, 30)] * 3), patch=st.tuples(*[st.integers(1, 12)] * 3), grown=st.integers(0, 7))
def test_patches_lie_in_their_case_or_their_case_in_them(shape: Shape, patch: Shape, grown: int) -> None:
    initial = (patch[0] + grown, patch[1] + grown, patch[2] + grown)
    crop = NnunetCrop(size=patch, initial_size=initial, batch_size=2, forced=0)
    corners = starts(crop, shape, [[(0, 0, 0)]], 200)
    slack = torch.tensor(shape) - torch.tensor(patch)
    assert (corners >= slack.clamp(max=0) - 1).all()
    assert (corners <= slack.clamp(min=0) + 1).all()


@pytest.mark.parametrize(
    ("shape", "patch", "initial"),
    [((20, 17, 9), (8, 8, 8), (12, 11, 13)), ((6, 30, 9), (8, 8, 8), (8, 8, 8)), ((9, 20, 21), (1, 8, 9), (1, 13, 14))],
)
@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_it_is_nnunets(shape: Shape, patch: Shape, initial: Shape, ignore: bool, empty: bool) -> None:
    """The same places, each as often."""
    loaders = pytest.importorskip("nnunetv2.training.dataloading.data_loader")
    classes: list[list[tuple[int, int, int]]] = [[], []] if empty else [[(0, 0, 1), (5, 8, 4)], [(4, 16, 8)]]
    every = [[(0, 3, 3), (5, 6, 7), (3, 15, 2)]] if ignore else []
    locations: dict[Any, np.ndarray] = {
        name: np.array([(0, *voxel) for voxel in voxels]).reshape(-1, 4)
        for name, voxels in zip([1, 2, ANNOTATED], classes + every, strict=False)
    }
    data = SimpleNamespace(identifiers=["a"])
    labels = SimpleNamespace(all_labels=[0, 1, 2], has_ignore_label=ignore)
    peer = loaders.nnUNetDataLoader(data, 3, initial, patch, labels, oversample_foreground_percent=0.33)
    crop = NnunetCrop(size=patch, initial_size=initial, batch_size=3, forced=1, annotated=ignore)
    result = starts(crop, shape, classes + every).numpy()
    np.random.seed(0)  # noqa: NPY002 - nnU-Net draws from it
    for number in range(3):
        forced = peer.get_do_oversample(number)
        assert forced == (number == 2)
        boxes = [peer.get_bbox(np.array(shape), forced, locations)[0] for _ in range(COUNT // 3)]
        wanted = np.array(boxes) + np.array(initial) // 2 - np.array(patch) // 2
        own = result[number::3][: COUNT // 3]
        for axis in range(3):
            one, other = (np.unique(each[:, axis], return_counts=True) for each in (own, wanted))
            assert one[0].tolist() == other[0].tolist()
            assert np.abs(one[1] - other[1]).max() < 5 * np.sqrt(2 * other[1].max())
