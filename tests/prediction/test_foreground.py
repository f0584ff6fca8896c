from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hasten.cache.arena import Arena, Store
from hasten.cases.types import Case, CaseSet, Volume
from hasten.config.schema import PrepareConfig
from hasten.prediction.foreground import check_labelled, spacing_warning, training_spacing
from hasten.prepare.case import prepare_case
from hasten.prepare.types import Geometry

PLACE = Geometry(
    source_shape=(10, 20, 20), source_affine=((1.0, 0.0, 0.0, 0.0),) * 4, permute=(0, 1, 2), flip=(False,) * 3,
    crop_start=(0, 0, 0), crop_shape=(10, 20, 20), spacing=(2.0, 1.0, 1.0), shape=(10, 10, 10),
)  # fmt: skip
"""Voxels of 2 mm in every direction once resampled."""


def cases_of(voxels: dict[str, tuple[int, ...]], names: str = "ab") -> tuple[CaseSet, Arena]:
    """Cases with so many voxels of the classes named by `names`."""
    cases = tuple(Case(id=name, image=(Path(f"{name}.nii"),), label=Path(f"{name}_label.nii")) for name in voxels)
    labels = {0: "background", **{10 * number: name for number, name in enumerate(names, 1)}}
    case_set = CaseSet(name="set", source=Path("set/dataset.json"), cases=cases, labels=labels)
    empty = torch.empty(0)
    arena = Arena(
        store=Store(values={}, channels={"image": 1}, shape=empty, offset=empty, ids=tuple(voxels)),
        shapes=(PLACE.shape,) * len(cases), offsets=(0,) * len(cases), geometry=(PLACE,) * len(cases),
        num_classes=len(labels),
        num_voxels=tuple(voxels.values()), home="file",
    )  # fmt: skip
    return case_set, arena


def check(case_set: CaseSet, arena: Arena, num_train: int) -> tuple[str, ...]:
    return check_labelled(case_set, arena, case_set.cases[:num_train], case_set.cases[num_train:])


def test_no_labelled_training_case_is_an_error() -> None:
    with pytest.raises(ValueError) as error:
        check(*cases_of({"u": (0, 0), "v": (0, 0), "w": (5, 3)}), 2)
    assert str(error.value).startswith("set/dataset.json: the label maps of all 2 training cases (u, v) hold only")


@pytest.mark.parametrize(
    ("voxels", "message"),
    [
        ({"u": (500, 20), "v": (400, 0), "w": (300, 0)}, r"in fewer than 2 cases.* b \(value 20\): 20 in 1 case \("),
        ({"u": (500, 0), "v": (400, 0), "w": (300, 0)}, r"in fewer than 2 cases.* b \(value 20\): 0 in 0 cases \("),
        (
            {"u": (800_000, 1), "v": (900_000, 2)},
            r"next to no voxels.* b \(value 20\): 3 in 2 cases .*1700003",
        ),
    ],
)
def test_classes_with_next_to_no_voxels_are_named(voxels: dict[str, tuple[int, ...]], message: str) -> None:
    (warning,) = check(*cases_of(voxels), 1)
    assert warning.startswith("set: ")
    assert re.search(message, warning)


def test_a_set_whose_training_cases_are_elsewhere_is_not_judged() -> None:
    case_set, arena = cases_of({"u": (5, 0)})
    absent = Case(id="absent", image=(Path("absent.nii"),))
    assert check_labelled(case_set, arena, (absent,), case_set.cases) == ()
    assert check_labelled(case_set, replace(arena, num_voxels=()), case_set.cases, case_set.cases) == ()


def ignoring(maps: dict[str, list[int]], num_train: int = 2) -> tuple[str, ...]:
    """What is told of cases with these voxels, one class (value 10, index 1), where 255 is ignored."""
    case_set, arena = cases_of({name: (voxels.count(1),) for name, voxels in maps.items()}, "a")
    flat = torch.tensor([voxel for voxels in maps.values() for voxel in voxels], dtype=torch.uint8)
    count = len(next(iter(maps.values())))
    shapes = ((1, 1, count),) * len(maps)
    store = replace(arena.store, values={"label": flat}, channels={"label": 1})
    arena = replace(arena, store=store, shapes=shapes, offsets=tuple(count * number for number in range(len(maps))))
    return check(replace(case_set, ignore=4), arena, num_train)


def test_cases_that_are_ignored_as_a_whole_are_named() -> None:
    assert ignoring({"u": [1, 0, 255], "v": [1, 1, 255], "w": [0, 1, 1]}) == ()
    (warning,) = ignoring({"u": [1, 0, 255], "v": [255, 255, 255], "w": [1, 255, 1], "x": [0, 255, 255]}, 2)
    assert warning.startswith("set: 1 cases have only ignored voxels (value 4), from which nothing is learned: v;")


TRAINED = training_spacing([(3.0, 0.8, 0.8), (5.0, 0.7, 0.7), (2.0, 0.9, 0.9)])
AS_IT_IS = PrepareConfig(spacing=(0, 0, 0), intensity="zscore", crop_foreground=False)


def warning(affine: np.ndarray, shape: tuple[int, int, int] = (4, 6, 8)) -> str | None:
    array = np.random.default_rng(0).normal(size=(1, *shape)).astype(np.float32)
    return spacing_warning(prepare_case(Volume(array, affine), None, id="a", spec=AS_IT_IS).geometry, TRAINED)


@pytest.mark.parametrize(
    ("xyz", "is_far"),
    [((0.8, 0.8, 3), False), ((0.36, 0.36, 9.9), False), ((0.8, 0.8, 10.1), True), ((0.3, 0.8, 3), True)],
)
def test_twice_beyond_the_range_is_far(xyz: tuple[float, ...], is_far: bool) -> None:
    assert (warning(np.diag([*xyz, 1.0])) is not None) == is_far


def test_axes_are_compared_in_space() -> None:
    """A sagittal file, whose first axis is the thick one."""
    straight = np.diag([0.8, 0.8, 10.5, 1.0])
    turned = straight[:, [2, 0, 1, 3]]  # of the file's axes, x is what z was
    assert warning(straight) == warning(turned)
    assert "its voxels are 10.5 x 0.8 x 0.8 mm (D, H, W)" in str(warning(turned))
    assert warning(np.diag([0.8, 0.8, 4.0, 1.0])[:, [2, 0, 1, 3]]) is None
