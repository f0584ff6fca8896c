"""A sample behaves as the dict that MONAI makes, and makes only what is asked for."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.data import decollate_batch

from hasten.monai.workflow.sample import LazySample, taken_apart
from tests.monai.workflow.parts import batches, same, snapshot


def batch(size: int = 2) -> dict[str, Any]:
    return {
        "image": torch.arange(size * 4.0).view(size, 1, 2, 2),
        "label": None,
        "pred": torch.ones(size, 3, requires_grad=True) * 2,
        "grade": torch.arange(size),
        "loss": torch.tensor(0.5, requires_grad=True) * 3,
    }


@given(size=st.integers(1, 4), keys=st.sets(st.sampled_from(["label", "pred", "grade", "loss"])))
def test_equals_what_monai_makes(size: int, keys: set[str]) -> None:
    values = {key: value for key, value in batch(size).items() if key in keys | {"image"}}
    made, reference = taken_apart(values), decollate_batch(values)
    assert [type(one) for one in made] == [LazySample] * size
    assert same(snapshot(made), snapshot(reference))
    assert not any(isinstance(value, torch.Tensor) and value.requires_grad for one in made for value in one.values())


@pytest.mark.parametrize("meta", [False, True])
def test_metatensors_keep_what_they_know(meta: bool) -> None:
    values = {key: value for key, value in batches(1, meta=meta)[0].items() if key != "name"}
    assert same(snapshot(taken_apart(values)), snapshot(decollate_batch(values)))


@pytest.mark.parametrize(
    "values",
    [
        {"image": torch.zeros(2, 1), "name": ["a", "b"]},
        {"image": torch.zeros(2, 1), "label": torch.zeros(3, 1)},
        {"loss": torch.tensor(1.0)},
        {"image": torch.zeros(2, 1), "meta": {"spacing": torch.ones(2, 3)}},
        [torch.zeros(2, 1), torch.ones(2, 1)],
    ],
)
def test_what_is_not_simple_is_left_to_monai(values: Any) -> None:
    made = taken_apart(values)
    assert same(snapshot(made), snapshot(decollate_batch(values)))
    assert not any(isinstance(one, LazySample) for one in made)


READS = {
    "dict": dict,
    "unpacked": lambda sample: {**sample},
    "keywords": lambda sample: (lambda **values: values)(**sample),
    "copy": lambda sample: sample.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda sample: pickle.loads(pickle.dumps(sample)),
    "items": lambda sample: {key: value for key, value in sample.items()},  # noqa: C416
    "values": lambda sample: dict(zip(sample, sample.values(), strict=True)),
    "update": lambda sample: _updated({}, sample),
    "or": lambda sample: sample | {},
    "ror": lambda sample: {} | sample,
    "keys": lambda sample: {key: sample[key] for key in sample.keys()},  # noqa: SIM118
    "get": lambda sample: {key: sample.get(key) for key in list(sample)},
    "pop": lambda sample: {key: sample.pop(key) for key in list(sample)},
    "popitem": lambda sample: dict(sample.popitem() for _ in range(len(sample))),
    "setdefault": lambda sample: {key: sample.setdefault(key, 0) for key in list(sample)},
}


def _updated(target: dict[str, Any], sample: LazySample) -> dict[str, Any]:
    target.update(sample)
    return target


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_no_way_of_reading_finds_anything_unmade(read: Any) -> None:
    assert same(snapshot(dict(read(taken_apart(batch())[1]))), snapshot(decollate_batch(batch())[1]))
