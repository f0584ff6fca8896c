from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from monai.data import MetaTensor
from monai.transforms import Flipd, Orientationd

from hasten.cache.item_bytes import decode, encode
from hasten.cache.publish import DamagedEntry

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text())
ARRAYS = npst.arrays(
    st.one_of(npst.integer_dtypes(), npst.floating_dtypes(sizes=(16, 32, 64)), npst.boolean_dtypes()),
    npst.array_shapes(min_dims=0, min_side=0),
)
ITEMS = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def round_trip(item: Any) -> Any:
    return decode(bytearray(b"".join(encode(item))), verify=True)


@settings(max_examples=150, deadline=None)
@given(ITEMS)
def test_what_goes_in_comes_out(item: Any) -> None:
    assert same(item, round_trip(item))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.uint8, torch.bool, torch.int64])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3), (1, 4, 5, 6)])
def test_tensors_of_every_kind(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 3).to(dtype)
    result = round_trip({"image": tensor})["image"]
    assert result.dtype == dtype
    assert torch.equal(result, tensor)


def test_metadata_and_the_trace_of_transforms_are_kept() -> None:
    affine = torch.diag(torch.tensor([2.0, 3.0, 4.0, 1.0], dtype=torch.float64))
    image = MetaTensor(torch.randn(1, 4, 5, 6), affine=affine, meta={"filename_or_obj": "a.nii", "pixdim": np.ones(8)})
    flip = Flipd("image", 0)
    item = flip(Orientationd("image", "LPS", labels=None)({"image": image}))
    result = round_trip(item)["image"]
    assert isinstance(result, MetaTensor)
    assert torch.equal(result.as_tensor(), item["image"].as_tensor())
    assert torch.equal(result.affine, item["image"].affine)
    assert result.meta["filename_or_obj"] == "a.nii"
    assert np.array_equal(result.meta["pixdim"], item["image"].meta["pixdim"])
    assert [each["class"] for each in result.applied_operations] == [
        each["class"] for each in item["image"].applied_operations
    ]
    undone = flip.inverse({"image": result})["image"]
    assert undone.shape == (1, 4, 5, 6)


@pytest.mark.parametrize("bad", [object(), lambda: None, {1, 2}, np.array([object()])])
def test_what_needs_pickle_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(ValueError, match=r"item\['deep'\]\[1\].*can't be cached"):
        encode({"deep": [1, bad]})


def test_two_hundred_flipped_bytes_are_found() -> None:
    item = {"image": torch.randn(1, 5, 6, 7), "label": np.ones((5, 6, 7), np.uint8), "name": "case"}
    record, draw = b"".join(encode(item)), random.Random(0)
    padding = result = 0
    for _ in range(200):
        damaged = bytearray(record)
        damaged[draw.randrange(len(record))] ^= 1 << draw.randrange(8)
        try:
            again = decode(damaged, verify=True)
        except DamagedEntry:
            result += 1
            continue
        padding += 1  # between the blocks lies nothing
        assert torch.equal(again["image"], item["image"])
        assert np.array_equal(again["label"], item["label"])
    assert result > 170


@pytest.mark.parametrize("data", [b"", b"short", b"HASTENR2" + b"\0" * 40, pickle.dumps({"a": 1})])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedEntry):
        decode(data, verify=False)


def test_a_truncated_record_is_refused() -> None:
    record = b"".join(encode({"image": torch.randn(64)}))
    for length in range(0, 64 * 4, 16):
        with pytest.raises(DamagedEntry):
            decode(bytearray(record[:length]), verify=True)
