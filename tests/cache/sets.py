"""Small sets of cases, and the slow, obvious statement of what their arena holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hasten.cache.arena import Arena
from hasten.cache.build import get_arena
from hasten.cache.file import checksum
from hasten.cases.entries import Listing
from hasten.cases.nifti import write_nifti
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import CacheConfig, PrepareConfig
from hasten.prepare.case import load_prepared
from hasten.prepare.foreground import foreground_points

SPEC = PrepareConfig(spacing=(0.0, 0.0, 0.0), intensity="zscore", crop_foreground=False, num_threads=2)
Shape = tuple[int, int, int]


def write_case_set(
    folder: Path,
    shapes: list[Shape],
    *,
    num_channels: int = 1,
    labels: dict[int, str] | None = None,
    dtype: str = "int16",
    nan_in: int | None = None,
) -> CaseSet:
    """Noise cases, one .nii file a channel; even cases lack the last label value. `nan_in`: the case with a NaN."""
    labels = labels or {0: "background", 1: "inner", 2: "outer"}
    values = np.array(sorted(labels))
    affine = np.diag([-1.0, 1.0, 2.5, 1.0])
    affine[:3, 3] = 1 / 3, -7.7, 1e-3
    cases = []
    for number, shape in enumerate(shapes):
        rng = np.random.default_rng([number, *shape])
        images = []
        for channel in range(num_channels):
            array = rng.integers(0, 250, shape).astype("float32" if number == nan_in else dtype)
            if number == nan_in:
                array.flat[0] = np.nan
            images.append(write_nifti(folder / f"case{number}_{channel}.nii", array, affine))
        drawn = values[: max(1, len(values) - (number % 2 == 0))]
        label = write_nifti(folder / f"case{number}_label.nii", rng.choice(drawn, shape).astype(np.uint8), affine)
        cases.append(Case(id=f"case{number}", image=tuple(images), label=label))
    return CaseSet(
        name="small set",
        source=folder,
        cases=tuple(cases),
        labels=labels,
        channels=tuple(f"channel{number}" for number in range(num_channels)),
        spatial_dims=2 if all(shape[0] == 1 for shape in shapes) else 3,
    )


def shard_of(case_set: CaseSet, folder: Path, *, max_points: int = 5) -> Path:
    """The one shard of a new cache in `folder`, which holds all cases of the set."""
    get_arena(case_set, SPEC, CacheConfig(dir=str(folder), home="file", max_points=max_points))
    (shard,) = (folder / "arena").iterdir()
    return shard


def listing_of(case_set: CaseSet) -> Listing:
    """A source that declares all that the set has."""
    return Listing(
        name=case_set.name,
        source=case_set.source,
        cases=case_set.cases,
        labels=case_set.labels,
        channels=case_set.channels,
        modality=case_set.modality,
    )


def assert_holds(arena: Arena, case_set: CaseSet, prepare: PrepareConfig, max_points: int) -> None:
    """The arena is what preparing every case by itself gives, in the order of the set."""
    store, sets, num_classes = arena.store, arena.store.sets, len(case_set.labels)
    assert sets is not None
    assert arena.ids == tuple(case.id for case in case_set.cases)
    assert arena.index(arena.ids[::-1]) == tuple(reversed(range(len(arena.ids))))
    assert (arena.num_channels, arena.num_classes) == (len(case_set.channels), num_classes)
    assert store.values["image"].dtype == getattr(torch, prepare.dtype)
    images, labels, next_point = [], [], 0
    for number, case in enumerate(case_set.cases):
        expected = load_prepared(case, case_set.labels, prepare)
        assert expected.label is not None
        assert np.array_equal(arena.image(number).numpy(), expected.image)
        assert np.array_equal(arena.label(number).numpy(), expected.label)
        assert arena.geometry[number] == expected.geometry
        assert tuple(store.shape[number].tolist()) == arena.shapes[number] == expected.label.shape
        assert int(store.offset[number]) == arena.offsets[number] == sum(map(np.size, labels))
        for index in range(1, num_classes):
            start, count = int(sets.first[number, index - 1]), int(sets.num[number, index - 1])
            points = sets.points[start : start + count].numpy()
            assert start == next_point
            assert count == min(max_points, int((expected.label == index).sum()))
            assert len(set(points.tolist())) == count
            assert (expected.label.reshape(-1)[points] == index).all()
            drawn = foreground_points(expected.label, num_classes, max_points, seed=checksum(expected.label))[0][
                index - 1
            ]
            assert np.array_equal(points, drawn)
            next_point += count
        images.append(expected.image)
        labels.append(expected.label)
    assert store.values["image"].numel() == sum(map(np.size, images))
    assert store.values["label"].numel() == sum(map(np.size, labels))
    assert sets.points.numel() == next_point
    assert arena.num_bytes == sum(array.nbytes for array in (*images, *labels))


def tensors_of(arena: Arena) -> list[Tensor]:
    """All that an arena holds, in one order."""
    store, sets = arena.store, arena.store.sets
    assert sets is not None
    return [store.values["image"], store.values["label"], store.offset, store.shape, *sets]


def assert_same(one: Arena, other: Arena) -> None:
    """Equal in everything but where it lies."""
    for name in ("ids", "shapes", "offsets", "geometry", "num_channels", "num_classes", "num_bytes"):
        assert getattr(one, name) == getattr(other, name)
    for a, b in zip(tensors_of(one), tensors_of(other), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a.cpu(), b.cpu())


def assert_same_cases(one: Arena, other: Arena) -> None:
    """Equal in all that is read of them, wherever each case lies in the flat tensors."""
    for name in ("ids", "shapes", "geometry", "num_channels", "num_classes", "num_bytes", "case_bytes"):
        assert getattr(one, name) == getattr(other, name)
    first, second = one.store.sets, other.store.sets
    assert first is not None
    assert second is not None
    assert torch.equal(first.num, second.num)
    for case in range(len(one.ids)):
        assert torch.equal(one.image(case), other.image(case))
        assert torch.equal(one.label(case), other.label(case))
        assert int(one.store.offset[case]) == one.offsets[case]
        for start, there, count in zip(first.first[case], second.first[case], first.num[case], strict=True):
            assert torch.equal(first.points[start : start + count], second.points[there : there + count])
