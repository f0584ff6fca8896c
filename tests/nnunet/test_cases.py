"""Reading nnU-Net's preprocessed cases: their point sets, their home, and what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hasten.nnunet.batches import read_cases
from tests.nnunet.datasets import DataSet


class Changed(DataSet):
    """With something else in the place of the second case's data, label map or properties."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def load_case(self, name: str) -> Any:
        data, seg, none, properties = super().load_case(name)
        parts = {"data": data, "seg": seg} | (self.parts if name == "b" else {})
        return parts["data"], parts["seg"], none, properties


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


def test_a_case_without_foreground() -> None:
    class Empty(DataSet):
        identifiers = ("a",)

        def load_case(self, name: str) -> Any:
            return np.zeros((1, 4, 5, 6), np.float32), np.zeros((1, 4, 5, 6), np.int8), None, {"class_locations": {}}

    store = read_cases(Empty())
    assert store.values["label"].dtype == torch.uint8
    assert store.sets is not None
    assert store.sets.num.shape == (1, 0)


def test_cases_beyond_the_budget_are_left_to_nnunet() -> None:
    with pytest.raises(MemoryError, match="memory has room for"):
        read_cases(DataSet(), budget=1000)


@pytest.mark.parametrize(
    "parts",
    [{"data": np.zeros((3, 13, 14, 16), np.float32)}, {"seg": np.zeros((1, 13, 14, 15), np.int8)}],
)
def test_cases_unlike_the_first(parts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"b: image .*run nnUNetv2_preprocess again"):
        read_cases(Changed(**parts))
