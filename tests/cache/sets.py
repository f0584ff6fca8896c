"""Small sets of cases, and the slow, obvious statement of what their arena holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hasten.cache.arena import Arena
from hasten.cases.nifti import write_nifti
from hasten.cases.types import Case, CaseSet
from hasten.config.schema import PrepareConfig
from hasten.prepare.case import load_prepared
from hasten.prepare.points import foreground_points

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


def assert_holds(arena: Arena, case_set: CaseSet, prepare: PrepareConfig, max_points: int) -> None:
    """The arena is what preparing every case by itself gives, in the order of the set."""
    tables, num_classes = arena.tables, len(case_set.labels)
    assert arena.ids == tuple(case.id for case in case_set.cases)
    assert arena.index(arena.ids[::-1]) == tuple(reversed(range(len(arena.ids))))
    assert (arena.num_channels, arena.num_classes) == (len(case_set.channels), num_classes)
    assert tables.image.dtype == getattr(torch, prepare.dtype)
    images, labels, next_point = [], [], 0
    for number, case in enumerate(case_set.cases):
        expected = load_prepared(case, case_set.labels, prepare)
        assert expected.label is not None
        assert np.array_equal(arena.image(number).numpy(), expected.image)
        assert np.array_equal(arena.label(number).numpy(), expected.label)
        assert arena.geometry[number] == expected.geometry
        assert tuple(tables.shape[number].tolist()) == arena.shapes[number] == expected.label.shape
        assert int(tables.offset[number]) == arena.offsets[number] == sum(map(np.size, labels))
        for index in range(1, num_classes):
            start, count = int(tables.point_start[number, index - 1]), int(tables.point_count[number, index - 1])
            points = tables.points[start : start + count].numpy()
            assert start == next_point
            assert count == min(max_points, int((expected.label == index).sum()))
            assert len(set(points.tolist())) == count
            assert (expected.label.reshape(-1)[points] == index).all()
            drawn = foreground_points(expected.label, num_classes, max_points, seed=number)[0][index - 1]
            assert np.array_equal(points, drawn)
            next_point += count
        images.append(expected.image)
        labels.append(expected.label)
    assert tables.image.numel() == sum(map(np.size, images))
    assert tables.label.numel() == sum(map(np.size, labels))
    assert tables.points.numel() == next_point
    assert arena.num_bytes == sum(array.nbytes for array in (*images, *labels))


def assert_same(one: Arena, other: Arena) -> None:
    """Equal in everything but where it lies."""
    for name in ("ids", "shapes", "offsets", "geometry", "num_channels", "num_classes", "num_bytes"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("image", "label", "offset", "shape", "points", "point_start", "point_count"):
        a, b = getattr(one.tables, name), getattr(other.tables, name)
        assert a.dtype == b.dtype
        assert torch.equal(a.cpu(), b.cpu())
