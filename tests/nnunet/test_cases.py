"""Reading nnU-Net's preprocessed cases: their point sets, their home, and what is wrong with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hasten.augment.store import case_of
from hasten.nnunet.cases import read_cases
from tests.nnunet.datasets import DataSet


class Changed(DataSet):
    """With something else in the place of the second case's data, label map or properties."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(cascaded="previous" in parts)
        self.parts = parts

    def load_case(self, name: str) -> Any:
        data, seg, previous, properties = super().load_case(name)
        if name != "b":
            return data, seg, previous, properties
        parts = {"data": data, "seg": seg, "previous": previous} | self.parts
        return parts["data"], parts["seg"], parts["previous"], properties


class WithLocations(DataSet):
    def load_case(self, name: str) -> Any:
        data, seg, none, properties = super().load_case(name)
        known = properties["class_locations"]
        every = np.argwhere(seg >= 0)
        locations = {(-1, 0, 1, 2): every, (1, 2): np.concatenate([known[1], known[2]]), 2: known[2], 3: []}
        return data, seg, none, {"class_locations": locations}


def test_regions_that_crops_are_centred_on_are_keys_too() -> None:
    sets = read_cases(WithLocations()).sets
    assert sets is not None
    assert sets.num.shape == (3, 4)
    assert sorted(sets.num[0].tolist()) == [0, 8, 35, 11 * 14 * 16]


def test_annotated_voxels_are_the_last_set() -> None:
    sets = read_cases(WithLocations(), annotated=(-1, 0, 1, 2)).sets
    assert sets is not None
    assert sets.num[:, -1].tolist() == [(shape - 1) * 14 * 16 for shape in (12, 13, 14)]


def test_a_case_without_foreground() -> None:
    class Empty(DataSet):
        identifiers = ("a",)

        def load_case(self, name: str) -> Any:
            return np.zeros((1, 4, 5, 6), np.float32), np.zeros((1, 4, 5, 6), np.int8), None, {"class_locations": {}}

    store = read_cases(Empty())
    assert store.values["label"].dtype == torch.uint8
    assert store.sets is not None
    assert store.sets.num.shape == (1, 0)


def test_cases_beyond_the_budget_lie_in_a_file_that_goes_with_the_process(tmp_path: Path) -> None:
    inside, mapped = read_cases(DataSet()), read_cases(DataSet(), budget=1000, folder=tmp_path)
    for key in ("image", "label"):
        assert torch.equal(inside.values[key], mapped.values[key])
    assert case_of(mapped, "image", 1).shape == (2, 13, 14, 16)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=r"fit neither in half of the free memory.*set HASTEN_RAM"):
        read_cases(DataSet(), budget=1000, folder=tmp_path)


@pytest.mark.parametrize(
    "parts",
    [{"data": np.zeros((3, 13, 14, 16), np.float32)}, {"seg": np.zeros((1, 13, 14, 15), np.int8)}],
)
def test_cases_unlike_the_first(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"b: image .*run nnUNetv2_preprocess again"):
        read_cases(Changed(**parts))
