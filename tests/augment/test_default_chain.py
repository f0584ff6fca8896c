"""The augmentation of a run, against a slow account of it that shares no code, and in what every batch promises."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.augment.chain import Batch
from hasten.augment.program import Segment
from hasten.config.schema import SampleConfig
from tests.augment.reference import Spacing, reference_coordinates, reference_sample
from tests.augment.stores import (
    OFF,
    RENDERERS,
    Shape,
    batch_by,
    case_values,
    random_store,
    segment_of,
    slice_of,
)

ALL_ON: dict[str, Any] = {
    "foreground_prob": 0.5,
    "flip_prob": (0.5, 0.5, 0.5),
    "affine_prob": 0.7,
    "rotate_deg": (40.0, 20.0, 20.0),
    "brightness_prob": 0.5,
    "contrast_prob": 0.5,
    "gamma_prob": 0.5,
    "noise_prob": 0.5,
}
SHAPES: list[Shape] = [(8, 9, 7), (4, 5, 3), (9, 4, 8)]
"""Larger than the patch, smaller than it, and both."""
PATCH = (6, 7, 5)

each_renderer = pytest.mark.parametrize("renderer", RENDERERS)


def same(result: Batch, wanted: Batch) -> bool:
    return result.keys() == wanted.keys() and all(torch.equal(result[key], wanted[key]) for key in wanted)


def full(value: torch.Tensor) -> np.ndarray:
    """(C, D, H, W) of a sample."""
    return (value if value.ndim == 4 else value[:, None]).numpy()


@dataclass(frozen=True)
class Given:
    """A segment and what the reference needs to know of it."""

    segment: Segment
    config: SampleConfig
    spacing: Spacing
    seed: int

    def reference(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Image, label and coordinates of a sample of the stream."""
        cases = range(len(self.segment.store.ids))
        settings = (self.config, self.spacing, self.segment.store, cases, self.seed, number)
        return *reference_sample(*settings), reference_coordinates(*settings)


def given_by(store: Any, patch: Shape, spacing: Spacing = (1.0, 1.0, 1.0), seed: int = 0, **options: Any) -> Given:
    size = options.pop("batch_size", 4)
    segment = segment_of(store, patch, batch_size=size, seed=seed, spacing=spacing, **options)
    return Given(segment, SampleConfig(patch=patch, batch_size=size, **{**OFF, **options}), spacing, seed)


@st.composite
def segments(make: st.DrawFn) -> Given:
    flat = make(st.booleans())
    edge = st.integers(1, 9)
    shape = st.tuples(st.just(1) if flat else edge, edge, edge)
    store = random_store(
        make(st.lists(shape, min_size=1, max_size=4)),
        num_channels=make(st.integers(1, 3)),
        num_classes=make(st.integers(2, 4)),
        dtype=make(st.sampled_from(["float16", "float32"])),
        seed=make(st.integers(0, 100)),
    )
    patch = make(st.tuples(st.just(1) if flat else st.integers(1, 7), st.integers(1, 7), st.integers(1, 7)))
    spacing = make(st.sampled_from([(1.0, 1.0, 1.0), (3.0, 0.7, 1.3)]))
    seed, size = make(st.integers(0, 2**62)), make(st.integers(1, 3))
    store = replace(store, spatial_dims=2 if flat else 3)
    return given_by(store, patch, spacing, seed, batch_size=size, **ALL_ON)


@settings(max_examples=100, deadline=None)
@given(segments(), st.sampled_from(list(RENDERERS)), st.integers(0, 10**9))
def test_agrees_with_the_reference(own: Given, renderer: str, step: int) -> None:
    """Labels are compared where the reference is not within 1e-4 voxel of a tie between two."""
    batch, size = batch_by(renderer, own.segment, step), own.segment.batch_size
    for row in range(size):
        image, label, coordinates = own.reference(step * size + row)
        assert np.abs(full(batch["image"][row]) - image).max() <= 1e-5
        clear = (np.abs(coordinates - np.floor(coordinates) - 0.5) > 1e-4).all(0)
        assert (full(batch["label"][row]) == label)[:, clear].all()


@each_renderer
def test_labels_halfway_between_two_voxels_round_up(renderer: str) -> None:
    """A zoom of exactly 2 reads halves and quarters, which float32 holds exactly: every tie is met."""
    options: dict[str, Any] = {"affine_prob": 1.0, "rotate_deg": (0.0, 0.0, 0.0), "scale_range": (2.0, 2.0)}
    own = given_by(random_store(SHAPES, num_classes=4), PATCH, **options)
    batch = batch_by(renderer, own.segment, 0)
    for row in range(4):
        _, label, coordinates = own.reference(row)
        assert (coordinates % 1 == 0.5).any()
        assert (full(batch["label"][row]) == label).all()


@each_renderer
def test_weights_are_exact_far_into_a_large_image(renderer: str) -> None:
    """A float32 coordinate near 100 000 has steps of 1/128 voxel, so the start is kept apart from it."""
    own = given_by(random_store([(1, 5, 120_000)]), (1, 5, 16), affine_prob=1.0, batch_size=6)
    batch = batch_by(renderer, own.segment, 0)
    for row in range(6):
        assert np.abs(full(batch["image"][row]) - own.reference(row)[0]).max() < 1e-5


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (3.0, 0.7, 1.3)])
@pytest.mark.parametrize("flat", [False, True])
@each_renderer
def test_with_all_off_a_patch_is_a_slice_of_its_case(dtype: str, spacing: Spacing, flat: bool, renderer: str) -> None:
    shapes: list[Shape] = [(1, *shape[1:]) for shape in SHAPES] if flat else SHAPES
    patch = (1, *PATCH[1:]) if flat else PATCH
    store = random_store(shapes, num_channels=2, dtype=dtype)
    segment = segment_of(store, patch, spacing=spacing, foreground_prob=0.5, batch_size=6)
    for draws in segment.draws(0, 3):
        batch = RENDERERS[renderer](segment, draws)
        assert batch["image"].dtype == torch.float32
        assert batch["image"].shape == (6, 2, *(patch[1:] if flat else patch))
        assert batch["label"].dtype == torch.uint8
        for row, (case, start) in enumerate(zip(draws.case.tolist(), draws.start.tolist(), strict=True)):
            for key, value in batch.items():
                wanted = slice_of(case_values(store, key, case), start, patch)
                assert torch.equal(value[row], (wanted[:, 0] if flat else wanted).to(value.dtype))


@pytest.mark.parametrize(("first", "last"), [(0, 3), (5, 6), (30, 70), (4, 4)])
def test_a_run_of_batches_is_its_steps(first: int, last: int) -> None:
    """Steps are drawn together, many at a time; nothing may depend on which."""
    segment = segment_of(random_store(SHAPES), PATCH, batch_size=2, **ALL_ON)
    results = list(segment.batches(first, last))
    assert len(results) == last - first
    assert all(same(batch, segment(step)) for step, batch in enumerate(results, start=first))


@each_renderer
def test_batches_share_no_memory_with_the_cases_or_each_other(renderer: str) -> None:
    segment = segment_of(random_store(SHAPES), PATCH)
    first = batch_by(renderer, segment, 0)
    kept = [value.clone() for value in (*segment.store.values.values(), *first.values())]
    for step in range(3):
        batch = batch_by(renderer, segment, step)
        batch["image"].fill_(-1)
        batch["label"].fill_(9)
    now = (*segment.store.values.values(), *first.values())
    assert all(torch.equal(value, before) for value, before in zip(now, kept, strict=True))


def test_global_random_state_is_neither_read_nor_changed() -> None:
    segment = segment_of(random_store(SHAPES), PATCH, **ALL_ON)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = segment(0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert same(segment(0), first)


class NoCopyFromTheHost(TorchDispatchMode):
    """Fails on what makes the host and a device wait for each other; visible on the CPU as well."""

    BANNED = ("lift_fresh", "_local_scalar_dense", "nonzero", "masked_select", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        assert not any(name in str(func) for name in self.BANNED), f"{func} in a step"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("patch", [PATCH, (1, 7, 5)])
def test_a_step_on_a_device_copies_nothing_from_the_host(patch: Shape) -> None:
    segment = segment_of(random_store([(patch[0], 9, 8), (patch[0], 4, 5)]), patch, **ALL_ON)
    with NoCopyFromTheHost():
        batch_by("device", segment, 0)
        with pytest.raises(AssertionError, match="lift_fresh"):
            torch.tensor([1.0])
