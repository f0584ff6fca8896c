"""The crop of a run. Those that are MONAI's are tested by chains, beside MONAI."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hasten.augment.crop import CropByPosNegLabel, ForegroundCrop
from hasten.cache.arena import Store
from hasten.config.schema import SampleConfig
from hasten.sample.random import hash32, sample_key
from tests.augment import reference
from tests.augment.stores import Shape, case_values, random_store, slice_of, store_of


def starts(store: Store, patch: Shape, prob: float, count: int, case: int = 0, seed: int = 0) -> torch.Tensor:
    """(count, 3) of samples 0 ... of one case."""
    key = hash32(sample_key(torch.tensor(seed), torch.arange(count)) ^ 0x2C1B)
    cases = torch.full((count,), case)
    return ForegroundCrop(size=patch, foreground_prob=prob).start(key, cases, store.shape[cases], store.sets)


def labelled(label: np.ndarray, num_classes: int) -> Store:
    return store_of([np.zeros((1, *label.shape), np.float32)], [label], num_classes)


@given(
    shape=st.tuples(*[st.integers(1, 9)] * 3),
    patch=st.tuples(*[st.integers(1, 9)] * 3),
    prob=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 2**40),
)
def test_a_patch_lies_in_its_case_or_its_case_in_the_patch(shape: Shape, patch: Shape, prob: float, seed: int) -> None:
    store = random_store([shape, (2, 3, 4), (3, 3, 3)], seed=seed % 100)
    for case in range(3):
        corners = starts(store, patch, prob, 6, case, seed)
        slack = store.shape[case] - torch.tensor(patch)
        assert (corners >= slack.clamp(max=0)).all()
        assert (corners <= slack.clamp(min=0)).all()
        config = SampleConfig(patch=patch, foreground_prob=prob)
        for number, start in enumerate(corners.tolist()):
            assert start == reference.crop_start(store, case, reference.sample_key(seed, number), config).tolist()


def test_starts_anywhere_are_equally_likely() -> None:
    store = random_store([(9, 7, 4)])
    for patch in [(5, 4, 4), (5, 4, 6)]:
        corners = starts(store, patch, 0.0, 30_000)
        corners = corners - corners.min(0).values
        place = (corners[:, 0] * 4 + corners[:, 1]) * 3 + corners[:, 2]
        counts = torch.unique(place, return_counts=True)[1]
        assert len(counts) == 5 * 4 * (1 if patch[2] == 4 else 3)
        assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_foreground_classes_are_drawn_evenly_from_those_present() -> None:
    """Class 2 is absent; class 1 has one voxel and class 3 has hundreds."""
    label = np.zeros((15, 16, 17), np.uint8)
    label[5:10, 5:10, 5:10] = 3
    label[3, 4, 4] = 1
    corners = starts(labelled(label, 4), (3, 3, 3), 1.0, 6000)
    centre = torch.from_numpy(label.astype(np.int64))[tuple((corners + 1).T)]
    counts = torch.bincount(centre, minlength=4)
    assert counts[0] == counts[2] == 0
    assert stats.chisquare(counts[[1, 3]].numpy()).pvalue > 0.001
    points = (corners[centre == 3] + 1) @ torch.tensor([272, 17, 1])
    seen = torch.unique(points, return_counts=True)[1]
    assert len(seen) == 50  # all that are remembered
    assert stats.chisquare(seen.numpy()).pvalue > 0.001


def test_a_crop_is_centred_or_anywhere() -> None:
    """What one of the two would have been does not depend on how often it is chosen."""
    anywhere, sometimes, centred = (
        starts(random_store([(12, 9, 11)]), (3, 4, 5), prob, 200) for prob in (0.0, 0.5, 1.0)
    )
    as_centred, as_anywhere = (sometimes == centred).all(1), (sometimes == anywhere).all(1)
    assert (as_centred | as_anywhere).all()
    assert 60 < as_centred.sum() < 140


@given(st.integers(0, 1000), st.tuples(*[st.integers(1, 7)] * 3), st.tuples(*[st.integers(1, 7)] * 3))
def test_a_foreground_patch_holds_its_class(seed: int, shape: Shape, patch: Shape) -> None:
    label = np.zeros(shape, np.uint8)
    label.reshape(-1)[seed % label.size] = 1
    store = labelled(label, 3)
    for start in starts(store, patch, 1.0, 3, seed=seed).tolist():
        assert slice_of(case_values(store, "label", 0), start, patch).any()


def test_a_case_without_foreground_is_cropped_anywhere() -> None:
    empty, full = np.zeros((8, 8, 8), np.uint8), np.ones((8, 8, 8), np.uint8)
    image = np.zeros((1, 8, 8, 8), np.float32)
    mixed, none = store_of([image, image], [empty, full], 3), store_of([image, image], [empty, empty], 3)
    assert none.sets is not None
    assert len(none.sets.points) == 0
    for store, case in [(mixed, 0), (none, 0), (none, 1), (replace(mixed, sets=None), 1)]:
        corners = starts(store, (5, 5, 5), 1.0, 5000, case)
        place = (corners[:, 0] * 4 + corners[:, 1]) * 4 + corners[:, 2]
        assert stats.chisquare(torch.bincount(place, minlength=64).numpy()).pvalue > 0.001


def test_the_last_case_may_lack_the_last_class() -> None:
    """Its first point would lie one past the end of all points."""
    label = np.zeros((4, 4, 4), np.uint8)
    label[1, 1, 1] = 1
    store = labelled(label, 3)
    assert store.sets is not None
    assert store.sets.first[0, 1] == len(store.sets.points)
    assert (starts(store, (1, 1, 1), 1.0, 10) == 1).all()


def test_no_crop_is_centred_on_a_class_to_ignore() -> None:
    label = np.array([[[[0, 1, 255, 2, 0, 255]]]], np.uint8)
    crop = CropByPosNegLabel(size=(1, 1, 1), ignore_index=255)
    foreground, background = crop.sets(label, None, 0)
    assert (foreground.tolist(), background.tolist()) == ([1, 3], [0, 4])
    assert crop.sets(label, label > 0, 0)[1].tolist() == []
    everything = CropByPosNegLabel(size=(1, 1, 1)).sets(label, None, 0)
    assert everything[0].tolist() == [1, 2, 3, 5]
