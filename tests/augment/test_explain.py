"""The tables that say what became of a chain."""

from __future__ import annotations

from typing import Any

from monai.transforms import (
    CastToTyped,
    Compose,
    EnsureTyped,
    RandBiasFieldd,
    RandCropByPosNegLabeld,
    RandFlipd,
    RandGaussianNoised,
    RandLambdad,
    RandRotated,
    RandZoomd,
)

from hasten.augment.compile import compile_transforms

KEYS = ("image", "label")
MODES = ("bilinear", "nearest")
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
    assert "one interpolation with 3, 4" in result[2]
    assert result[3].strip().startswith("= CropByPosNegLabel(size=(8, 8, 8), keys=('image', 'label')")
    assert result[4] == "3  RandRotated             fused       one interpolation with 2, 4"
    assert result[5].strip() == "= Rotate(keys=('image', 'label'), prob=0.2, range_x=(-0.5, 0.5))"
    assert result[9].strip() == "= GaussianNoise(keys=('image',), prob=0.1)"
    assert result[10] == "6  RandFlipd               fused       a separate interpolation"
    assert result[12].startswith('7  RandZoomd               per-sample  reads "image" with mode=area')
    assert result[14].strip() == '= cast("label")'
    assert result[-1] == "batch: image, label (classes: label)"


def test_what_runs_on_whole_cases_says_why() -> None:
    result = lines(RandFlipd(KEYS), RandLambdad("image", func=abs), RandBiasFieldd("image"), CROP, RandFlipd(KEYS))
    assert "before RandCropByPosNegLabeld, and RandLambdad" in result[1]
    assert result[1].endswith("; on whole cases")
    assert result[2].endswith("has no counterpart in Hasten; on whole cases")
    assert result[4].endswith("crops what RandFlipd has changed; on whole cases")
    assert result[5].endswith("a separate interpolation")
