"""Samples that MONAI's transforms make of whole cases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    Compose,
    RandCropByPosNegLabeld,
    RandGaussianNoised,
    RandLambdad,
    Randomizable,
    RandShiftIntensityd,
    RandSpatialCropSamplesd,
)
from torch import Tensor

from hasten.augment.chain import Chain
from hasten.augment.from_monai import compile_transforms
from hasten.augment.make_program import augment_batch, segment_of_batch
from hasten.augment.noise import GaussianNoise
from hasten.augment.store import store_of_batch
from hasten.augment.whole_cases import Items, WholeCases, run_one
from tests.augment.lowering import KEYS, batch_of, item
from tests.augment.test_from_monai import rows


def source(*transforms: Any, keys: tuple[str, ...] = KEYS, count: int = 3) -> WholeCases:
    cases = [item(seed=seed) for seed in range(count)]
    items = Items(
        count=count, get=lambda case: {key: value.clone() for key, value in cases[case].items()},
        name=lambda case: f"item {case}",
    )  # fmt: skip
    return WholeCases(transforms=transforms, keys=keys, seed=4, items=items, train_cases=tuple(range(count)))


def crop(num_samples: int = 3) -> RandCropByPosNegLabeld:
    return RandCropByPosNegLabeld(KEYS, label_key="label", spatial_size=8, num_samples=num_samples)


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


class Touchy(Randomizable):
    """Writes to what it is given, as some transforms do."""

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        row["image"] += self.R.rand()
        return row


@pytest.mark.parametrize("num_samples", [1, 3])
def test_a_sample_is_the_same_whichever_came_before(num_samples: int) -> None:
    own = source(RandLambdad("image", func=lambda x: x + 1, prob=0.5), crop(num_samples), Touchy())
    whole = own.samples(range(9))
    for number in (0, 4, 5, 8):
        assert equal(own.samples([number])[0], whole[number])
        assert equal(own.samples([number, number])[1], whole[number])
    assert not equal(whole[0], whole[1])


def test_samples_of_one_case_follow_each_other() -> None:
    own = source(lambda row: {**row, "image": row["image"].mean() + 0 * row["image"]}, crop(3))
    assert own.num_samples == 3
    means = [round(float(sample["image"].mean()), 4) for sample in own.samples(range(9))]
    assert means[0::3] == means[1::3] == means[2::3]
    assert sorted(means[::3]) == sorted(round(float(item(seed=seed)["image"].mean()), 4) for seed in range(3))


def test_a_second_crop_of_one_sample_is_taken_as_it_is() -> None:
    own = source(crop(2), RandSpatialCropSamplesd(KEYS, roi_size=6, num_samples=1))
    assert own.samples([1])[0]["image"].shape == (2, 6, 6, 6)
    twice = source(crop(2), RandSpatialCropSamplesd(KEYS, roi_size=6, num_samples=2), Touchy())
    with pytest.raises(ValueError, match="RandSpatialCropSamplesd: gives several samples of a sample"):
        twice.samples([0])


def test_what_goes_wrong_names_the_item_and_the_transform() -> None:
    def broken(row: Any) -> Any:
        raise KeyError("scanner")

    with pytest.raises(RuntimeError, match=r"item \d: broken failed: KeyError: 'scanner'"):
        source(broken).samples([0])
    with pytest.raises(ValueError, match=r'gives no "weight", only \[\'image\', \'label\'\]'):
        source(crop(), keys=("image", "weight")).samples([0])
    with pytest.raises(ValueError, match="gives 2 samples of a case where 1 are expected"):
        source(lambda row: [row, row]).samples([0])


def test_writing_transforms_do_not_touch_their_neighbours() -> None:
    """Crops of one case overlap in memory."""
    own = source(crop(3), RandShiftIntensityd("image", offsets=(3, 3), prob=1))
    together = own.samples(range(3))
    assert all(equal(own.samples([number])[0], together[number]) for number in range(3))


def test_batches_go_through_the_operations_by_sample_number() -> None:
    batch = batch_of(item(), item(seed=1), item(seed=2))
    program = segment_of_batch(
        Chain(crop=None, ops=(GaussianNoise(prob=1),), keys=KEYS, label_keys=("label",)), batch, 7, "cpu"
    )
    whole = augment_batch(program, batch, 5)
    last = augment_batch(program, {key: value[2:] for key, value in batch.items()}, 7)
    assert torch.equal(last["image"], whole["image"][2:])
    with pytest.raises(ValueError, match=r"the program was made for .*samples must be alike"):
        augment_batch(program, batch_of(item(size=(8, 8, 8))), 0)


def test_a_batch_must_be_of_images_of_one_size() -> None:
    image = torch.zeros(2, 1, 8, 8)
    with pytest.raises(ValueError, match='"label" has shape'):
        store_of_batch({"image": image, "label": torch.zeros(2, 8, 8)}, torch.device("cpu"))
    with pytest.raises(ValueError, match='"label" has shape'):
        store_of_batch({"image": image, "label": torch.zeros(3, 1, 8, 8)}, torch.device("cpu"))
    store = store_of_batch({"image": torch.from_numpy(np.zeros((2, 1, 8, 8)))}, torch.device("cpu"))
    assert store.values["image"].dtype == torch.float32


def test_generators_that_are_not_monais_are_seeded_too_and_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's isn't seeded: a step draws from it while a thread makes the next batch."""

    def foreign(item: dict[str, Any]) -> dict[str, Any]:
        return {"image": item["image"] + torch.rand(()) + float(np.random.rand())}  # noqa: NPY002

    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("a GPU is seeded"))
    before = torch.get_rng_state()
    one, other, again = (run_one((foreign,), {"image": torch.zeros(2)}, seed)["image"] for seed in (1, 2, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_two_threads_may_make_batches_by_the_same_transforms() -> None:
    transforms = [RandLambdad("image", func=lambda image: image * 2, prob=0.5), RandGaussianNoised("image", prob=0.5)]
    program = compile_transforms(Compose(transforms)).bind(rows(2), batch_size=4)
    wanted = [program(step)["image"] for step in range(12)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda step: program(step)["image"], range(12)))
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))
