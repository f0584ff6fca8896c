"""Random crops: read from MONAI's, and what can't be read is left to MONAI."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from monai.transforms import (
    CenterSpatialCropd,
    ClassesToIndicesd,
    Compose,
    FgBgToIndicesd,
    RandCropByLabelClassesd,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandScaleCropd,
    RandSpatialCropd,
    RandSpatialCropSamplesd,
    ResizeWithPadOrCropd,
    SpatialPadd,
)

from hasten.augment.compile import compile_transforms
from hasten.augment.crop import CentreCrop, CropByLabelClasses, CropByPosNegLabel, SpatialCrop
from tests.augment.lowering import KEYS, item, lowered, why


def crop_of(*chain: Any, **options: Any) -> Any:
    return lowered(*chain, **options).plan.crop


def pos_neg(**options: Any) -> RandCropByPosNegLabeld:
    return RandCropByPosNegLabeld(KEYS, label_key="label", **{"spatial_size": (8, 9, 10), **options})


def classes(**options: Any) -> RandCropByLabelClassesd:
    return RandCropByLabelClassesd(KEYS, label_key="label", **{"spatial_size": (8, 9, 10), **options})


def test_by_foreground_and_background() -> None:
    result = crop_of(pos_neg(pos=3, neg=1, num_samples=4, image_key="image", image_threshold=0.5))
    assert result == CropByPosNegLabel(
        size=(8, 9, 10), keys=KEYS, label_key="label", pos=0.75, neg=0.25, num_samples=4, image_key="image",
        image_threshold=0.5,
    )  # fmt: skip
    assert crop_of(pos_neg(spatial_size=(8, 9))).size == (1, 8, 9)
    assert crop_of(pos_neg(spatial_size=8)).size == (8, 8, 8)
    assert crop_of(pos_neg(allow_smaller=True)).pad


def test_cached_indices_are_those_of_the_crop() -> None:
    result = FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg", image_key="image", image_threshold=0.3)
    crop = crop_of(result, pos_neg(fg_indices_key="label_fg", bg_indices_key="label_bg"))
    assert (crop.image_key, crop.image_threshold) == ("image", 0.3)
    assert "no cached FgBgToIndicesd" in why(pos_neg(fg_indices_key="label_fg", bg_indices_key="label_bg"))
    crop = crop_of(
        ClassesToIndicesd("label", num_classes=3, image_key="image"), classes(indices_key="label_cls_indices")
    )
    assert (crop.num_classes, crop.image_key) == (3, "image")
    assert "no cached ClassesToIndicesd" in why(classes(indices_key="label_cls_indices", num_classes=3))


def test_by_classes() -> None:
    result = crop_of(classes(ratios=[1, 0, 2], num_samples=2))
    assert result == CropByLabelClasses(
        size=(8, 9, 10), num_classes=3, keys=KEYS, label_key="label", ratios=(1.0, 0.0, 2.0), num_samples=2
    )
    assert crop_of(classes(num_classes=5)).num_classes == 5
    assert "neither num_classes nor ratios" in why(classes())


def test_anywhere_and_in_the_middle() -> None:
    assert crop_of(RandSpatialCropd(KEYS, roi_size=(8, 9, 10))) == SpatialCrop(size=(8, 9, 10), keys=KEYS)
    result = crop_of(RandSpatialCropSamplesd(KEYS, roi_size=[8, 9, 10], num_samples=3))
    assert result == SpatialCrop(size=(8, 9, 10), keys=KEYS, num_samples=3)
    assert crop_of(RandSpatialCropd(KEYS, roi_size=8, random_center=False)) == CentreCrop(size=(8, 8, 8), keys=KEYS)


@pytest.mark.parametrize("after", [SpatialPadd(KEYS, 8), ResizeWithPadOrCropd(KEYS, (8, 8, 8))])
def test_a_pad_behind_the_crop_is_its_own(after: Any) -> None:
    """A case smaller than the patch, cropped and padded: MONAI's result, whole."""
    chain = [RandSpatialCropd(KEYS, roi_size=(8, 8, 8), random_center=False), after]
    program = lowered(*chain)
    assert program.plan.crop.pad
    assert "the patch is whole already" in program.explain()
    row = item(size=(5, 10, 7))
    result = program.bind([row], batch_size=1)(0)
    wanted = Compose(chain)({key: value.clone() for key, value in row.items()})
    for key in KEYS:
        assert torch.equal(result[key][0].float(), torch.as_tensor(wanted[key]).float())


@pytest.mark.parametrize(
    "after",
    [
        SpatialPadd(KEYS, 8, mode="edge"),
        SpatialPadd(KEYS, 8, method="end"),
        SpatialPadd(KEYS, 8, value=1),
        SpatialPadd("image", 8),
    ],
)
def test_other_pads_are_not(after: Any) -> None:
    assert not compile_transforms(Compose([RandSpatialCropd(KEYS, roi_size=(8, 8, 8)), after])).plan.crop.pad


def test_a_centre_crop_of_the_same_size_is_nothing_to_do() -> None:
    program = lowered(RandSpatialCropd(KEYS, roi_size=(8, 8, 8)), CenterSpatialCropd(KEYS, 8))
    assert not program.plan.ops
    assert "the patch is no larger than that" in program.explain()


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (pos_neg(spatial_size=(8, -1, 8)), "takes sides from each case"),
        (RandSpatialCropd(KEYS, roi_size=(8, 8, 8), random_size=True), "random_size=True"),
        (RandSpatialCropSamplesd(KEYS, roi_size=8, num_samples=2, random_size=True), "random_size=True"),
        (RandScaleCropd(KEYS, roi_scale=0.5), "a share of each case"),
        (pos_neg(allow_missing_keys=True), "allow_missing_keys=True"),
        (RandSpatialCropd("image", roi_size=8), 'leaves "label" as it is'),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_is_left_to_monai(transform: Any, message: str) -> None:
    assert message in why(transform, RandFlipd(KEYS), at=0)


def test_a_size_of_too_many_axes_is_refused_when_data_are_bound() -> None:
    program = lowered(RandSpatialCropd(KEYS, roi_size=(8, 8, 8)))
    with pytest.raises(ValueError, match=r"RandSpatialCropd: roi_size=\(8, 8, 8\) .*3 axes, .*have 2"):
        program.bind([item(2)], batch_size=1)


def test_one_number_counts_for_as_many_axes_as_there_are() -> None:
    program = lowered(RandSpatialCropd(KEYS, roi_size=8))
    assert program.bind([item(2)], batch_size=1)(0)["image"].shape == (1, 2, 8, 8)
    assert program.bind([item(3)], batch_size=1)(0)["image"].shape == (1, 2, 8, 8, 8)
