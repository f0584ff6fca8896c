"""The entries of a batch, by what the chain reads and what it adds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from monai.transforms import Compose, ConcatItemsd, DeleteItemsd, RandFlipd, RandGaussianNoised

from hasten.augment.compile import compile_transforms

KEYS = ["image", "label"]
FLIP = RandFlipd(KEYS, prob=1, spatial_axis=0)
ROWS = [{"image": torch.rand(1, 8, 8, 8), "label": torch.zeros(1, 8, 8, 8)}]


@pytest.mark.parametrize("rest", [[], [DeleteItemsd("label")]], ids=["kept", "deleted"])
@pytest.mark.parametrize("first", [[FLIP], [FLIP, RandGaussianNoised("image", prob=1, std=0.0)]], ids=len)
def test_an_entry_may_be_joined_to_others_under_its_own_name(first: list[Any], rest: list[Any]) -> None:
    chain = Compose([*first, ConcatItemsd(KEYS, "image", dim=0), *rest])
    program = compile_transforms(chain, strict=True)
    assert program.keys == ("image", "label")
    wanted = chain(dict(ROWS[0]))
    batch = program.bind(ROWS, batch_size=1)(0)
    called = program({key: value[None] for key, value in ROWS[0].items()}, seed=0)
    assert batch.keys() == called.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.equal(batch[key][0], value.as_tensor())
        assert torch.equal(called[key][0], value.as_tensor())


def test_what_is_read_after_it_is_made_is_no_entry_of_the_data() -> None:
    two = [ConcatItemsd(KEYS, "both"), ConcatItemsd(["both", "image"], "both")]
    program = compile_transforms(Compose([FLIP, *two]))
    assert program.keys == ("image", "label")
    assert program.bind(ROWS, batch_size=1)(0)["both"].shape == (1, 3, 8, 8, 8)
