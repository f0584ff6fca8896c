"""Entries of an item that are a number: in batches beside the images, each with its own sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import Compose, EnsureTyped, RandFlipd, RandLambdad, RandSpatialCropd

from hasten.augment.from_monai import compile_transforms

SIDE = 6


def rows(count: int = 5) -> list[dict[str, Any]]:
    """Images that hold their own number everywhere."""
    return [
        {
            "image": torch.full((1, SIDE, SIDE, SIDE), float(number)),
            "grade": number,
            "age": 40.5 + number,
            "slices": np.array([number, -number]),
            "done": number % 2 == 0,
            "name": f"case {number}",
        }
        for number in range(count)
    ]


FUSED = [EnsureTyped(["image"]), RandSpatialCropd(["image"], (4, 4, 4), random_size=False), RandFlipd(["image"], 0.5)]
# What no operation of Hasten's stands for, before the crop: the chain runs on whole cases.
WHOLE = [EnsureTyped(["image"]), RandLambdad(["image"], lambda value: value + 0, prob=1.0), *FUSED[1:]]


@pytest.mark.parametrize("chain", [FUSED, WHOLE], ids=["fused", "whole cases"])
def test_each_sample_has_the_numbers_of_its_case(chain: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    program = compile_transforms(Compose(chain)).bind(rows(), batch_size=4, seed=3)
    for step in range(4):
        batch = program(step)
        assert set(batch) == {"image", "grade", "age", "slices", "done"}
        number = batch["image"][:, 0, 0, 0, 0].round().long()
        assert torch.equal(batch["grade"], number)
        assert torch.allclose(batch["age"], 40.5 + number)
        assert torch.equal(batch["slices"], torch.stack([number, -number], 1))
        assert torch.equal(batch["done"], number % 2 == 0)
    assert 'not the entries "name" of an item' in caplog.text


def test_keys_that_are_named_are_all() -> None:
    program = compile_transforms(Compose(FUSED), keys=["image"]).bind(rows(), batch_size=2)
    assert set(program(0)) == {"image"}


def test_numbers_must_be_in_every_item_and_of_one_length() -> None:
    items = rows()
    items[3]["grade"] = "high"
    with pytest.raises(ValueError, match=r'item 3: "grade" is a str, and a number in other items'):
        compile_transforms(Compose(FUSED)).bind(items, batch_size=2)
    items = rows()
    del items[2]["age"]
    with pytest.raises(ValueError, match=r'item 2: "age" is not there, and a number in other items'):
        compile_transforms(Compose(FUSED)).bind(items, batch_size=2)
    items = rows()
    items[4]["slices"] = np.array([1])
    with pytest.raises(ValueError, match=r'item 4: "slices" has shape \(1,\), that of item 0 \(2,\)'):
        compile_transforms(Compose(FUSED)).bind(items, batch_size=2)
