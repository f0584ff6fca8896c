"""Entries of an item that are a number: in batches beside the images, each with its own sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.data import DataLoader, Dataset, list_data_collate
from monai.transforms import (
    Compose,
    EnsureTyped,
    RandAffined,
    RandCropByPosNegLabeld,
    RandFlip,
    RandFlipd,
    RandLambdad,
    RandSpatialCropd,
)

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
        assert torch.equal(batch["age"], 40.5 + number.double())
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


def measured(row: dict[str, Any]) -> dict[str, Any]:
    """What a transform of the user's own may add: the place of a slice, and whether it holds anything."""
    return {**row, "slice_label": float(row["image"].max()) / 10, "empty": bool(row["image"].max() == 0)}


CROP, FLIP = FUSED[1], FUSED[2]


@pytest.mark.parametrize(
    "chain",
    [[CROP, FLIP], [CROP, measured], [measured, CROP, FLIP], [CROP, measured, RandAffined(["image"], prob=1.0)]],
    ids=["in the items", "made of patches", "made of whole cases", "with a warp after it"],
)
def test_numbers_have_the_types_that_monai_gives_them(chain: list[Any]) -> None:
    items = [{**row, "list": [0.5, 2.0], "single": np.float32(1), "one": np.bool_(True)} for row in rows(4)]
    compose = Compose([EnsureTyped(["image"]), *chain])
    expected = next(iter(DataLoader(Dataset(items, compose), batch_size=4, collate_fn=list_data_collate)))
    # MONAI makes two columns of a list.
    expected["list"] = torch.stack(expected["list"], 1)
    batch = compile_transforms(compose).bind(items, batch_size=4)(0)
    assert set(batch) == set(expected) - {"name"}
    for key in set(batch) - {"image"}:
        assert (batch[key].shape, batch[key].dtype) == (expected[key].shape, expected[key].dtype), key
        assert torch.equal(batch[key].sort(0).values, expected[key].sort(0).values), key


@pytest.mark.parametrize("chain", [[CROP, FLIP], [CROP, measured], [measured, CROP, FLIP]])
def test_a_number_may_be_named(chain: list[Any]) -> None:
    items = [{**row, "slice_label": 0.5} for row in rows()]
    batch = compile_transforms(Compose(chain), keys=["image", "slice_label"]).bind(items, batch_size=4)(0)
    assert (batch["slice_label"].shape, batch["slice_label"].dtype) == ((4,), torch.float64)
    assert {"image", "slice_label"} <= set(batch) <= {"image", "slice_label", "empty"}


@pytest.mark.parametrize("chain", [FUSED, WHOLE], ids=["fused", "whole cases"])
def test_a_fraction_among_integers_stays_one(chain: list[Any]) -> None:
    items = [{**row, "age": 40 + row["grade"] / 2 if row["grade"] else 40} for row in rows(2)]
    batch = compile_transforms(Compose(chain)).bind(items, batch_size=2)(0)
    assert sorted(batch["age"].tolist()) == [40, 40.5]


def test_a_made_number_may_be_named_and_what_is_nowhere_may_not() -> None:
    named = Compose([measured, CROP, FLIP])
    batch = compile_transforms(named, keys=["image", "slice_label"]).bind(rows(), batch_size=4)(0)
    assert set(batch) == {"image", "slice_label"}
    assert torch.allclose(batch["slice_label"].float(), batch["image"][:, 0, 0, 0, 0] / 10)
    with pytest.raises(ValueError, match=r'gives no "slices_label", only .*; name what batches hold by keys'):
        compile_transforms(named, keys=["image", "slices_label"]).bind(rows(), batch_size=4)
    with pytest.raises(ValueError, match=r'"grade" has shape \(\); a number is no image: take it out of the keys'):
        compile_transforms(Compose([RandFlipd(["image", "grade"], 0.5)])).bind(rows(), batch_size=4)
    with pytest.raises(ValueError, match=r"names keys: use those that end in d \(RandFlipd\)"):
        compile_transforms(Compose([RandFlip(0.5)]))


def test_a_number_beside_images_of_a_loaders_batch_stays_as_it_is() -> None:
    batch = {"image": torch.rand(2, 1, SIDE, SIDE, SIDE), "age": torch.tensor([40.5, 41.5], dtype=torch.float64)}
    result = compile_transforms(Compose([FLIP]), keys=["image", "age"])(batch, seed=1)
    assert result["age"] is batch["age"]


def test_a_bool_label_stays_bool() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = [torch.rand(1, 8, 8, 8, generator=generator) > 0.5 for _ in range(3)]
    chain = Compose(
        [
            RandCropByPosNegLabeld(["image", "label"], "label", (6, 6, 6), num_samples=1),
            RandAffined(["image", "label"], prob=1.0, rotate_range=0.5, mode=("bilinear", "nearest")),
            RandFlipd(["image", "label"], 0.5),
        ]
    )
    batches = [
        compile_transforms(chain).bind(
            [{"image": label.float(), "label": label.to(dtype)} for label in labels], batch_size=4
        )(0)
        for dtype in (torch.bool, torch.uint8)
    ]
    assert [batch["label"].dtype for batch in batches] == [torch.bool, torch.uint8]
    assert torch.equal(batches[0]["label"], batches[1]["label"].bool())
    assert torch.equal(batches[0]["image"], batches[1]["image"])
