"""Whole chains: lowered, bound to data, and what is left to MONAI running in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.transforms import (
    CastToTyped,
    Compose,
    ConcatItemsd,
    CropForegroundd,
    DeleteItemsd,
    EnsureChannelFirstd,
    EnsureTyped,
    LoadImaged,
    OneOf,
    Orientationd,
    RandAffined,
    RandBiasFieldd,
    RandCropByPosNegLabeld,
    RandFlip,
    RandFlipd,
    RandGaussianNoised,
    RandLambdad,
    RandomOrder,
    RandRotated,
    RandShiftIntensityd,
    RandSpatialCropd,
    RandZoomd,
    Resized,
    ScaleIntensityRanged,
    Spacingd,
)
from torch import Tensor

import hasten
from hasten.augment.from_monai import compile_transforms
from hasten.augment.program import HostSource, ResidentSource
from hasten.cache.dataset import CacheDataset
from hasten.monai.persistent import PersistentDataset
from hasten.monai.smart import SmartCacheDataset
from tests.augment.lowering import KEYS, batch_of, error, inner, item, lowered, plain, why
from tests.augment.stores import arena_of, store_of

MODES = ("bilinear", "nearest")


def rows(count: int = 3, dims: int = 3, **options: Any) -> list[dict[str, Tensor]]:
    return [item(dims, seed=seed, **options) for seed in range(count)]


def copied(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() for key, value in row.items()}


def test_a_lazy_chain_reads_once_as_monais_does() -> None:
    chain = [
        RandRotated(KEYS, range_x=(0.2, 0.2), prob=1, mode=MODES, padding_mode="border", dtype=None),
        RandAffined(KEYS, rotate_range=((0.1, 0.1),), prob=1, mode=MODES, padding_mode="border"),
        RandFlipd(KEYS, prob=1, spatial_axis=0),
    ]
    program = compile_transforms(Compose(chain, lazy=True), strict=True)
    row = item(size=(16, 16, 16))
    batches = program(batch_of(row), seed=0)
    wanted = plain(Compose(chain, lazy=True)(copied(row)))
    assert error(inner(batches["image"], 3), inner(wanted["image"][None], 3)) < 2e-4


def test_files_go_through_the_whole_chain(tmp_path: Path) -> None:
    """Loading, orientation, spacing and cropping are cached; what is random is lowered; the rest follows."""
    paths = []
    for number, row in enumerate(rows(2, channels=1, size=(20, 22, 18))):
        names = {}
        for key in KEYS:
            names[key] = str(tmp_path / f"{key}{number}.nii.gz")
            nib.save(nib.Nifti1Image(row[key][0].numpy(), np.diag([1.0, 1.0, 1.5, 1.0])), names[key])
        paths.append(names)
    chain = Compose([
        LoadImaged(KEYS), EnsureChannelFirstd(KEYS),
        ScaleIntensityRanged("image", a_min=-5, a_max=5, b_min=0.0, b_max=1.0, clip=True),
        CropForegroundd(KEYS, source_key="image"), Orientationd(KEYS, axcodes="RAS"),
        Spacingd(KEYS, pixdim=(1.0, 1.0, 1.2), mode=MODES),
        RandCropByPosNegLabeld(KEYS, label_key="label", spatial_size=(12, 12, 12), num_samples=2),
        RandFlipd(KEYS, prob=0.5, spatial_axis=0), RandShiftIntensityd("image", offsets=0.1, prob=0.5),
        EnsureTyped("label", dtype=torch.uint8),
    ])  # fmt: skip
    program = hasten.compile_transforms(chain, strict=True)
    assert [step.how for step in program.plan.steps] == ["cached"] * 6 + ["fused"] * 4
    batch = program.bind(paths, batch_size=4)(0)
    assert batch["image"].shape == (4, 1, 12, 12, 12)
    assert batch["label"].shape == (4, 1, 12, 12, 12)
    assert batch["label"].dtype == torch.uint8


MIDDLE = [
    RandSpatialCropd(KEYS, roi_size=(8, 8, 8)),
    RandFlipd(KEYS, prob=0.5, spatial_axis=0),
    RandZoomd(KEYS, prob=0.5, mode=("area", "nearest")),
    RandGaussianNoised("image", prob=0.5),
]
BEFORE = [
    RandLambdad("image", func=lambda image: image + 1, prob=0.5),
    RandCropByPosNegLabeld(KEYS, label_key="label", spatial_size=(8, 8, 8), num_samples=3),
    RandShiftIntensityd("image", offsets=0.3, prob=0.5),
    RandZoomd(KEYS, prob=0.5, mode=("area", "nearest")),
    RandGaussianNoised("image", prob=0.5),
]
FUSED = [*MIDDLE[:2], MIDDLE[3]]
each_chain = pytest.mark.parametrize("chain", [FUSED, MIDDLE, BEFORE], ids=["fused", "middle", "before"])


@each_chain
def test_the_stream_depends_on_neither_batch_size_nor_start_nor_history(chain: list[Any]) -> None:
    program = compile_transforms(Compose(chain))
    data = rows()
    small, large = program.bind(data, batch_size=2, seed=5), program.bind(data, batch_size=5, seed=5)
    one, other = list(small.batches(0, 5)), list(large.batches(0, 2))
    for key in KEYS:
        assert torch.equal(torch.cat([batch[key] for batch in one]), torch.cat([batch[key] for batch in other]))
        assert torch.equal(small(3)[key], one[3][key])
    again = program.bind(data, batch_size=2, seed=6)(0)
    assert not torch.equal(again["image"], one[0]["image"])


@each_chain
def test_every_case_comes_once_an_epoch(chain: list[Any]) -> None:
    data = rows(4)
    for number, row in enumerate(data):
        row["image"] = torch.full_like(row["image"], 100.0 * number)
    bound = compile_transforms(Compose(chain)).bind(data, batch_size=12, train_cases=[0, 2, 3])
    cases = (bound(0)["image"].mean((1, 2, 3, 4)) / 100).round().tolist()
    repeats = 3 if chain is BEFORE else 1
    assert sorted(cases[: 3 * repeats]) == sorted([0, 2, 3] * repeats)
    assert cases[:repeats] == cases[:1] * repeats


def test_a_transform_in_the_middle_runs_as_monais_does() -> None:
    """What it draws can't differ: it always zooms by the same factor."""
    zoom = RandZoomd(KEYS, prob=1, min_zoom=1.3, max_zoom=1.3, mode=("area", "nearest"))
    chain = [RandFlipd(KEYS, prob=1, spatial_axis=1), zoom, RandShiftIntensityd("image", offsets=(0.2, 0.2), prob=1)]
    program = compile_transforms(Compose(chain))
    assert [step.how for step in program.plan.steps] == ["fused", "per-sample", "fused"]
    own = rows(2)
    batches = program(batch_of(*[copied(row) for row in own]), seed=0)
    wanted = batch_of(*[plain(Compose(chain)(copied(row))) for row in own])
    for key in KEYS:
        assert torch.allclose(batches[key].float(), wanted[key].float(), atol=1e-5)


def test_a_batch_of_a_loader_is_augmented_by_sample_number() -> None:
    program = compile_transforms(Compose(MIDDLE[1:]))
    batch = {**batch_of(*rows(4)), "spacing": torch.ones(4, 3)}
    whole = program(batch, seed=1, first=10)
    for first in (0, 2):
        half = {key: value[first : first + 2] for key, value in batch.items()}
        part = program(half, seed=1, first=10 + first)
        for key in KEYS:
            assert torch.equal(part[key], whole[key][first : first + 2])
    assert whole["spacing"] is batch["spacing"]
    assert not torch.equal(program(batch, seed=2, first=10)["image"], whole["image"])


def test_a_batch_can_not_be_cropped_about_its_foreground() -> None:
    batch = batch_of(*rows(2))
    with pytest.raises(ValueError, match="RandCropByPosNegLabeld must see whole cases"):
        compile_transforms(Compose(BEFORE[1:]))(batch, seed=0)
    assert lowered(*FUSED)(batch, seed=0)["image"].shape == (2, 2, 8, 8, 8)
    with pytest.raises(ValueError, match=r"the batch has no \['label'\]"):
        lowered(*FUSED)({"image": batch["image"]}, seed=0)


CHAIN = Compose([EnsureTyped(KEYS), ScaleIntensityRanged("image", a_min=0, a_max=2), *FUSED])


def test_it_is_bound_to_rows_and_to_cached_data_sets_alike(tmp_path: Path) -> None:
    data = rows()
    program = lowered(*CHAIN.transforms)
    wanted = program.bind(data, batch_size=4, seed=2)(1)
    arrays = [{key: value.numpy() for key, value in row.items()} for row in data]
    own = Compose(program.cached.compose.transforms)
    for dataset in (
        CacheDataset(data, own, progress=False),
        CacheDataset(data, own, progress=False, cache_rate=0.4),
        PersistentDataset(arrays, own, tmp_path),
        SmartCacheDataset(data, own, replace_rate=0.5, cache_num=3, shuffle=False, progress=False),
    ):
        bound = program.bind(dataset, batch_size=4, seed=2)
        assert isinstance(bound.latest.source, ResidentSource)
        result = bound(1)
        for key in KEYS:
            assert torch.equal(result[key], wanted[key])


def test_it_is_bound_to_an_arena() -> None:
    data = rows(channels=1)
    images, labels = ([row[key].numpy() for row in data] for key in KEYS)
    arena = arena_of(store_of(images, [label[0].astype(np.uint8) for label in labels], 3))
    program = lowered(RandSpatialCropd(KEYS, roi_size=8), *FUSED[1:])
    result, wanted = program.bind(arena, batch_size=4)(0), program.bind(data, batch_size=4)(0)
    for key in KEYS:
        assert torch.equal(result[key], wanted[key])


def test_another_chains_data_set_is_refused() -> None:
    dataset = CacheDataset(rows(), Compose([EnsureTyped(KEYS), *FUSED]), progress=False)
    with pytest.raises(ValueError, match="the CacheDataset was made with another chain"):
        lowered(*CHAIN.transforms).bind(dataset, batch_size=2)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ([], {"batch_size": 2}, "there are no items"),
        ("folder", {"batch_size": 2}, "data is a str"),
        (rows(2), {"batch_size": 0}, "batch_size=0"),
        (rows(2), {"batch_size": 1, "train_cases": [2]}, "there are 2 cases; name some of 0 to 1"),
        (rows(2), {"batch_size": 1, "train_cases": []}, "train_cases"),
        ([{"label": item()["label"]}], {"batch_size": 1}, 'has no "image"'),
        ([torch.zeros(1, 9, 9, 9)], {"batch_size": 1}, "item 0: is a Tensor; items must be dictionaries"),
    ],
    ids=range(7),
)
def test_data_that_do_not_fit_are_refused(data: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lowered(*FUSED).bind(data, **options)


def test_items_of_several_sizes_without_a_crop() -> None:
    data = [item(size=(10, 12, 14)), item(size=(12, 12, 12), seed=1)]
    flips = [RandFlipd(KEYS, prob=0.5, spatial_axis=0), RandShiftIntensityd("image", offsets=0.1)]
    with pytest.raises(ValueError, match="without a crop in the chain all items must have one shape"):
        lowered(*flips).bind(data, batch_size=2)
    resize = Resized(KEYS, spatial_size=(8, 8, 8), mode=("trilinear", "nearest"))
    bound = compile_transforms(Compose([flips[0], resize, flips[1]])).bind(data, batch_size=2)
    assert isinstance(bound.latest.source, HostSource)
    assert bound(0)["image"].shape == (2, 2, 8, 8, 8)


def test_the_batch_holds_what_the_chain_does_not_touch() -> None:
    row = {**item(), "weight": torch.rand(1, 12, 16, 14), "spacing": torch.ones(3)}
    program = lowered(EnsureTyped(("image", "label", "weight", "spacing")), RandGaussianNoised("image"))
    assert set(program.bind([row], batch_size=2)(0)) == {"image", "label", "weight", "spacing"}
    only = lowered(EnsureTyped(("image", "label")), RandFlipd(("image", "label")), keys=["image"])
    assert set(only.bind([row], batch_size=2)(0)) == {"image"}


def test_which_keys_hold_classes() -> None:
    def labels(*chain: Any, **options: Any) -> tuple[str, ...]:
        return compile_transforms(Compose(list(chain)), **options).label_keys

    both_keys = ("t1", "truth")
    crop = RandCropByPosNegLabeld(both_keys, label_key="truth", spatial_size=8)
    assert labels(crop) == ("truth",)
    assert labels(RandRotated(both_keys, mode=MODES)) == ("truth",)
    assert labels(RandRotated(both_keys, mode="nearest")) == ()
    assert labels(RandFlipd(("t1", "tumour_SEG", "brain_mask", "label"))) == ("tumour_SEG", "brain_mask", "label")
    assert labels(RandFlipd(KEYS), label_keys=[]) == ()
    assert labels(RandFlipd(KEYS), label_keys="image") == ("image",)
    with pytest.raises(ValueError, match='label_keys: "truth" is not among the keys'):
        labels(RandFlipd(KEYS), label_keys=["truth"])


class MyFlip(RandFlipd):
    """Looks like MONAI's, and does what it likes."""


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (MyFlip(KEYS), "is code of your own made from MONAI's RandFlipd"),
        (lambda row: row, "is code of your own"),
        (RandFlip(), "works on arrays; write RandFlipd"),
        (OneOf([RandFlipd(KEYS), RandGaussianNoised("image")]), "decides by itself"),
        (RandomOrder([RandFlipd(KEYS), RandGaussianNoised("image")]), "decides by itself"),
        (RandLambdad("image", func=abs), "has no counterpart"),
    ],
    ids=range(6),
)
def test_what_hasten_does_not_know_is_left_to_monai(transform: Any, message: str) -> None:
    assert message in why(RandFlipd(KEYS), transform)
    with pytest.raises(ValueError, match=r"can't be lowered: it .*strict=False"):
        lowered(RandFlipd(KEYS), transform)


def test_a_transform_that_changes_the_size_is_found_out() -> None:
    def halved(row: dict[str, Any]) -> dict[str, Any]:
        return {key: value[:, ::2] for key, value in row.items()}

    program = compile_transforms(Compose([RandFlipd(KEYS), halved, RandGaussianNoised("image")]))
    with pytest.raises(ValueError, match=r'halved: .*"image" from \(12, 16, 14\) to \(6, 16, 14\)'):
        program(batch_of(*rows(2)), seed=0)
    last = compile_transforms(Compose([RandFlipd(KEYS), halved]))
    assert last(batch_of(*rows(2)), seed=0)["image"].shape == (2, 2, 6, 16, 14)


def test_a_transform_that_resizes_and_is_not_lowered_takes_all_before_it_along() -> None:
    area = Resized(KEYS, spatial_size=(6, 6, 6), mode=("area", "nearest"))
    program = compile_transforms(Compose([*FUSED[:2], area, RandGaussianNoised("image")]))
    assert [step.how for step in program.plan.steps] == ["per-sample"] * 3 + ["fused"]
    assert program.bind(rows(), batch_size=2)(0)["image"].shape == (2, 2, 6, 6, 6)
    alone = compile_transforms(Compose([*FUSED[:2], area]))
    assert [step.how for step in alone.plan.steps] == ["fused", "fused", "per-sample"]
    assert alone.bind(rows(), batch_size=2)(0)["image"].shape == (2, 2, 6, 6, 6)


CROP = RandCropByPosNegLabeld(KEYS, label_key="label", spatial_size=(8, 8, 8), num_samples=2)


def lines(*chain: Any) -> list[str]:
    return compile_transforms(Compose(list(chain))).explain().splitlines()


def test_each_transform_has_a_row_with_what_became_of_it() -> None:
    result = lines(
        EnsureTyped(KEYS), CROP, RandRotated(KEYS, range_x=0.5, prob=0.2, mode=MODES),
        RandFlipd(KEYS, prob=0.5, spatial_axis=0), RandGaussianNoised("image"), RandFlipd(KEYS, prob=0.5),
        RandZoomd(KEYS, mode=("area", "nearest")), CastToTyped("label", dtype="uint8"),
    )  # fmt: skip
    assert result[0].split() == ["transform", "runs", "why"]
    assert result[1].startswith("1  EnsureTyped             cached      deterministic")
    assert "2 samples of a case" in result[2]
    assert result[3].strip().startswith("= CropByPosNegLabel(size=(8, 8, 8), keys=('image', 'label')")
    assert result[4] == "3  RandRotated             fused       on whole batches"
    assert result[5].strip().startswith("= Affine(keys=('image', 'label'), prob=0.2")
    assert result[9].strip() == "= GaussianNoise(keys=('image',), prob=0.1)"
    assert result[10] == "6  RandFlipd               fused       on whole batches"
    assert result[12].startswith('7  RandZoomd               per-sample  reads "image" with mode=area')
    assert result[14].strip() == '= cast("label")'
    assert result[-1] == "batch: image, label (classes: label)"


def test_what_runs_on_whole_cases_says_why() -> None:
    result = lines(RandFlipd(KEYS), RandLambdad("image", func=abs), RandBiasFieldd("image"), CROP, RandFlipd(KEYS))
    assert "before RandCropByPosNegLabeld" in result[1]
    assert result[1].endswith("; on whole cases")
    assert result[2].endswith("has no counterpart in Hasten; on whole cases")


PAIR = ["image", "label"]
FLIP = RandFlipd(PAIR, prob=1, spatial_axis=0)
ROWS = [{"image": torch.rand(1, 8, 8, 8), "label": torch.zeros(1, 8, 8, 8)}]


@pytest.mark.parametrize("rest", [[], [DeleteItemsd("label")]], ids=["kept", "deleted"])
@pytest.mark.parametrize("first", [[FLIP], [FLIP, RandGaussianNoised("image", prob=1, std=0.0)]], ids=len)
def test_an_entry_may_be_joined_to_others_under_its_own_name(first: list[Any], rest: list[Any]) -> None:
    chain = Compose([*first, ConcatItemsd(PAIR, "image", dim=0), *rest])
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
    two = [ConcatItemsd(PAIR, "both"), ConcatItemsd(["both", "image"], "both")]
    program = compile_transforms(Compose([FLIP, *two]))
    assert program.keys == ("image", "label")
    assert program.bind(ROWS, batch_size=1)(0)["both"].shape == (1, 3, 8, 8, 8)
