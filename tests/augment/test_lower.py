"""MONAI's transforms lowered: with numbers that leave nothing to chance, a batch is what MONAI makes of each sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import monai.transforms as mt
import numpy as np
import pytest
import torch

from hasten.augment.colour import ColorJitter
from hasten.augment.crop import CentreCrop, CropByLabelClasses, CropByPosNegLabel, SpatialCrop
from hasten.augment.grid import Cut
from tests.augment.lowering import KEYS, batch_of, both, error, inner, item, lowered, why

KEY = "image"
MODES = ("bilinear", "nearest")
FLIP = mt.RandFlipd(KEYS, prob=1, spatial_axis=0)
QUIET = mt.RandFlipd(KEYS, prob=0)
SHIFT = mt.RandShiftIntensityd(KEY, offsets=(0.2, 0.2), prob=1)
"""Before a deterministic transform, which would be cached otherwise."""


def affine(**options: Any) -> mt.RandAffined:
    given = {
        "rotate_range": ((0.3, 0.3), (0.1, 0.1), (-0.2, -0.2)),
        "shear_range": ((0.1, 0.1),),
        "translate_range": ((1.5, 1.5), (-2, -2)),
        "scale_range": ((0.1, 0.1), (0.1, 0.1), (-0.1, -0.1)),
        **options,
    }
    return mt.RandAffined(KEYS, prob=1, mode=MODES, **given)


EXACT: list[tuple[Any, ...]] = [
    (FLIP,),
    (mt.RandFlipd(KEYS, prob=1, spatial_axis=(0, -1)),),
    (mt.RandFlipd(KEYS, prob=1),),
    (mt.RandFlipd("image", prob=1, spatial_axis=1),),
    (mt.RandFlipd(KEYS, prob=1, spatial_axis=1, lazy=True),),
    (QUIET, mt.Flipd(KEYS, spatial_axis=1)),
    (QUIET, mt.CenterSpatialCropd(KEYS, roi_size=9)),
    (QUIET, mt.CenterSpatialCropd(KEYS, roi_size=10)),
    (QUIET, mt.ResizeWithPadOrCropd(KEYS, spatial_size=11)),
    (QUIET, mt.SpatialPadd(KEYS, spatial_size=10)),
    (QUIET, mt.DivisiblePadd(KEYS, k=2)),
    (mt.RandSpatialCropd(KEYS, roi_size=9, random_center=False),),
    (mt.RandGaussianNoised(KEY, prob=0.0),),
    (FLIP, mt.CastToTyped(KEYS, dtype=(np.float32, np.uint8))),
    (FLIP, mt.CastToTyped(KEYS, dtype=(torch.float16, torch.int64))),
    (FLIP, mt.EnsureTyped(KEYS)),
    (FLIP, mt.EnsureTyped("label", dtype=torch.uint8)),
    (FLIP, mt.ToTensord(KEYS, dtype=torch.float32)),
    (FLIP, mt.Identityd(KEYS)),
]
CLOSE: list[tuple[Any, ...]] = [
    (affine(padding_mode="zeros"),),
    (affine(padding_mode="border"),),
    (affine(padding_mode="reflection"),),
    (affine(padding_mode="zeros", spatial_size=-1),),
    (mt.RandRotated(KEYS, range_x=(0.4, 0.4), range_y=(0.2, 0.2), range_z=(-0.3, -0.3), prob=1, mode=MODES),),
    (mt.RandRotated(KEYS, range_x=(0.4, 0.4), prob=1, mode=MODES, padding_mode="zeros", dtype=np.float64),),
    (mt.RandGaussianNoised(KEY, prob=1, mean=0.3, std=0.0),),
    (mt.RandGaussianNoised(KEY, prob=1, mean=-0.3, std=0.0, sample_std=False),),
    (mt.RandShiftIntensityd(KEY, offsets=(0.4, 0.4), prob=1, channel_wise=True),),
    (mt.RandScaleIntensityd(KEY, factors=(0.4, 0.4), prob=1),),
    (mt.RandScaleIntensityd(KEY, factors=(-0.4, -0.4), prob=1, channel_wise=True),),
    (mt.RandAdjustContrastd(KEY, gamma=(1.7, 1.7), prob=1),),
    (mt.RandAdjustContrastd(KEY, gamma=(0.6, 0.6), prob=1, invert_image=True, retain_stats=True),),
    (mt.RandGaussianSmoothd(KEY, sigma_x=(0.7, 0.7), sigma_y=(0.9, 0.9), sigma_z=(1.1, 1.1), prob=1),),
    (SHIFT, mt.NormalizeIntensityd(KEY, channel_wise=True)),
    (SHIFT, mt.NormalizeIntensityd(KEY, nonzero=True)),
    (SHIFT, mt.NormalizeIntensityd(KEY, subtrahend=0.5, divisor=2.0)),
    (SHIFT, mt.NormalizeIntensityd(KEY, subtrahend=[0.5, 1.0], divisor=[2.0, 3.0], channel_wise=True)),
    (SHIFT, mt.ScaleIntensityRanged(KEY, a_min=-1, a_max=2, b_min=0, b_max=1, clip=True)),
    (SHIFT, mt.ScaleIntensityRanged(KEY, a_min=-1, a_max=2, b_min=0)),
    (SHIFT, mt.ScaleIntensityd(KEY, minv=None, maxv=None, factor=0.3)),
]


def named(chain: tuple[Any, ...]) -> str:
    return type(chain[-1]).__name__


@pytest.mark.parametrize("chain", EXACT, ids=named)
@pytest.mark.parametrize("dims", [2, 3])
def test_whole_voxels_and_types_are_monais(chain: tuple[Any, ...], dims: int) -> None:
    result, wanted = both(*chain, dims=dims)
    converts = len(chain) > 1 and chain[0] is FLIP
    for key in KEYS:
        assert torch.equal(result[key].float(), wanted[key].float())
        assert not converts or result[key].dtype == wanted[key].dtype


@pytest.mark.parametrize("chain", CLOSE, ids=named)
@pytest.mark.parametrize("dims", [2, 3])
def test_values_are_monais(chain: tuple[Any, ...], dims: int) -> None:
    result, wanted = both(*chain, dims=dims)
    assert error(result["image"], wanted["image"]) < 2e-4
    assert (result["label"] != wanted["label"]).float().mean() < 0.005  # a rounding either way at halves
    assert not torch.equal(result["image"], torch.stack([item(dims, seed=seed)["image"] for seed in range(2)]))


@pytest.mark.parametrize("dims", [2, 3])
def test_low_resolution_and_resizing_are_monais(dims: int) -> None:
    linear = "trilinear" if dims == 3 else "bilinear"
    lower = mt.RandSimulateLowResolutiond(KEY, prob=1, zoom_range=(0.6, 0.6), upsample_mode=linear)
    result, wanted = both(lower, dims=dims)
    assert error(result["image"], wanted["image"]) < 2e-4
    for out in ((9, 20, 14), (16, 16, 16)):
        resize = mt.Resized(KEYS, spatial_size=out[:dims], mode=(linear, "nearest-exact"))
        result, wanted = both(QUIET, resize, dims=dims)
        assert error(result["image"], wanted["image"]) < 2e-4
        assert (result["label"] != wanted["label"]).float().mean() < 0.12  # halves


@pytest.mark.parametrize("factor", [0.8, 1.3, (0.8, 1.2)])
@pytest.mark.parametrize("align", [None, False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_zoom_is_monais_within(factor: Any, align: bool | None, dims: int) -> None:
    modes = ("bilinear", "nearest-exact")
    zoom = mt.RandZoomd(KEYS, prob=1, min_zoom=factor, max_zoom=factor, mode=modes, align_corners=(align, None))
    result, wanted = both(zoom, dims=dims)
    assert error(inner(result["image"], 4), inner(wanted["image"], 4)) < 2e-4
    if not align:
        assert (inner(result["label"], 4) != inner(wanted["label"], 4)).float().mean() < 0.05  # halves


def test_a_chain_of_maps_is_monais_within() -> None:
    """One interpolation in place of three, on an image smooth enough for the difference not to matter much."""
    chain = [
        mt.RandRotated(KEYS, range_x=(0.1, 0.1), prob=1, mode=MODES, padding_mode="border"),
        mt.RandZoomd(KEYS, prob=1, min_zoom=1.1, max_zoom=1.1, mode=("trilinear", "nearest"), padding_mode="edge"),
        mt.RandFlipd(KEYS, prob=1, spatial_axis=1),
    ]
    result, wanted = both(*chain, size=(20, 20, 20))
    assert error(inner(result["image"], 5), inner(wanted["image"], 5)) < 0.06
    assert (inner(result["label"], 5) == inner(wanted["label"], 5)).float().mean() > 0.7
    apart, wanted = both(chain[0], mt.RandGaussianNoised("image", prob=1, std=0.0), chain[2], size=(20, 20, 20))
    assert error(apart["image"], wanted["image"]) < 2e-4


def test_a_second_crop_is_a_cut() -> None:
    crops = mt.RandSpatialCropd(KEYS, roi_size=12), mt.RandSpatialCropd(KEYS, roi_size=(8, 8, 8))
    _, cut = lowered(crops[0], mt.RandFlipd(KEYS), crops[1]).plan.ops
    assert isinstance(cut, Cut)
    assert (cut.random, cut.size) == (True, (8, 8, 8))


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 1.0), (torch.uint8, 255.0)])
def test_torchvisions_colour_jitter(dtype: torch.dtype, largest: float) -> None:
    """Its class need not be installed."""
    transform = mt.RandTorchVisiond.__new__(mt.RandTorchVisiond)
    own = SimpleNamespace(brightness=(0.8, 1.2), contrast=None, saturation=[0.9, 1.1], hue=(-0.1, 0.1))
    transform.keys, transform.allow_missing_keys = ("image",), False
    transform.name, transform.trans = "ColorJitter", SimpleNamespace(trans=own)
    program = lowered(transform)._for_item({"image": torch.zeros(3, 8, 8, dtype=dtype)}, "item 0", torch.device("cpu"))
    wanted = ColorJitter(brightness=(0.8, 1.2), contrast=0.0, saturation=(0.9, 1.1), hue=(-0.1, 0.1))
    (result,) = program.plan.ops
    fields = ("brightness", "contrast", "saturation", "hue")
    assert [getattr(result, name) for name in fields] == [getattr(wanted, name) for name in fields]
    assert result.value_range == largest


def test_nothing_is_done_where_nothing_changes() -> None:
    chain = [
        mt.EnsureTyped(KEYS),
        mt.ToTensord(KEYS),
        mt.ToNumpyd("image"),
        mt.ToDeviced(KEYS, "cpu"),
        mt.Identityd(KEYS),
        mt.CastToTyped("image", dtype=np.float32),
        mt.DeleteItemsd("id"),
        mt.SelectItemsd(KEYS),
    ]
    assert len(lowered(FLIP, *chain).plan.ops) == 1


@pytest.mark.parametrize(
    ("last", "kept"),
    [
        (mt.SelectItemsd("image"), {"image"}),
        (mt.DeleteItemsd("label"), {"image"}),
        (mt.DeleteItemsd("^la", use_re=True), {"image"}),
        (mt.DeleteItemsd("la"), set(KEYS)),
    ],
)
def test_entries_are_chosen_and_left_out(last: Any, kept: set[str]) -> None:
    assert set(lowered(FLIP, last)(batch_of(item(), item(seed=1)), seed=0)) == kept


def test_what_the_chain_makes_can_be_kept_and_converted() -> None:
    chain = [mt.ConcatItemsd(KEYS, name="both"), mt.EnsureTyped("both", dtype=torch.float16), mt.SelectItemsd("both")]
    result = lowered(FLIP, *chain)(batch_of(item(), item(seed=1)), seed=0)
    assert set(result) == {"both"}
    assert result["both"].shape == (2, 3, 12, 16, 14)
    assert result["both"].dtype == torch.float16


CROP = mt.RandSpatialCropd(KEYS, roi_size=12)
LEFT: list[tuple[list[Any], str]] = [
    ([mt.RandZoomd(KEYS)], 'reads "image" with mode=area'),
    ([mt.RandRotated(KEYS, mode=3)], "mode=3"),
    ([mt.RandRotated(KEYS, keep_size=False, mode=MODES)], "keep_size=False"),
    ([mt.RandZoomd(KEYS, keep_size=False, mode=MODES)], "keep_size=False"),
    ([mt.RandRotated(KEYS, mode=MODES, align_corners=True)], "align_corners=True"),
    ([mt.RandRotated(KEYS, mode=MODES, dtype=np.float16)], "dtype=float16"),
    ([mt.RandRotated(KEYS, mode=MODES, padding_mode=("border", "zeros"))], "padding modes ['border', 'zeros']"),
    ([mt.RandZoomd(KEYS, mode=MODES, padding_mode="reflect")], "padding_mode=reflect"),
    ([mt.RandZoomd(KEYS, mode=MODES, padding_mode="constant", constant_values=3)], "arguments for padding"),
    ([mt.RandRotated(KEYS)], 'reads "label", which looks like a label, with mode=bilinear'),
    ([mt.RandFlipd(KEYS, allow_missing_keys=True)], "allow_missing_keys=True"),
    ([mt.Rand3DElasticd(KEYS, (1, 2), (1, 2))], "deforms elastically"),
    ([affine(spatial_size=(8, 12, 10))], "gives another size than it gets"),
    ([mt.RandGaussianNoised(KEY, dtype=np.float16)], "computes in dtype=float16"),
    ([mt.RandScaleIntensityd(KEY, factors=0.1, dtype=np.uint8)], "computes in dtype=uint8"),
    ([mt.RandSimulateLowResolutiond(("image", "label"))], "draws other numbers"),
    ([mt.RandSimulateLowResolutiond(KEY, downsample_mode="area")], "downsample_mode=area"),
    ([mt.RandSimulateLowResolutiond(KEY, upsample_mode="nearest")], "upsample_mode=nearest"),
    ([mt.RandShiftIntensityd(KEY, offsets=0.1, factor_key="f")], "factor_key"),
    ([mt.RandGaussianSmoothd(KEY, approx="sampled")], 'approx="sampled"'),
    ([CROP, mt.Resized(KEYS, spatial_size=(8, 8, 8))], "mode=area"),
    ([CROP, mt.Resized(KEYS, spatial_size=8, size_mode="longest", mode=MODES)], "size_mode=longest"),
    ([CROP, mt.Resized(KEYS, spatial_size=(8, 8, 8), mode=MODES, anti_aliasing=(True, False))], "anti_aliasing"),
    ([CROP, mt.Resized("image", spatial_size=(8, 8, 8), mode="bilinear")], 'leaves "label" as it is'),
    ([CROP, mt.CenterSpatialCropd("image", roi_size=8)], 'leaves "label" as it is'),
    ([CROP, mt.SpatialPadd(KEYS, spatial_size=20)], "pads from (12, 12, 12) to (20, 20, 20)"),
    ([CROP, mt.ResizeWithPadOrCropd(KEYS, spatial_size=20)], "pads from (12, 12, 12) to (20, 20, 20)"),
    ([CROP, mt.DivisiblePadd(KEYS, k=8)], "pads (12, 12, 12) to a multiple of 8"),
    ([SHIFT, mt.NormalizeIntensityd(KEY, subtrahend=np.zeros((2, 4, 4, 4)))], "for each voxel"),
    ([SHIFT, mt.NormalizeIntensityd(KEY, subtrahend=0.5, channel_wise=True)], "one for each channel"),
    ([SHIFT, mt.ScaleIntensityd(KEY)], "a range of its own"),
    ([FLIP, mt.ConcatItemsd(KEYS, name="both"), mt.RandGaussianNoised("both")], 'works on "both", which the chain'),
    ([FLIP, mt.ConcatItemsd(KEYS, name="both", dim=1)], "joins along axis 1"),
    ([FLIP, mt.AsDiscreted("image", argmax=True)], "has no counterpart"),
    ([FLIP, mt.EnsureTyped(KEYS, allow_missing_keys=True)], "allow_missing_keys"),
    ([mt.RandSpatialCropd(KEYS, roi_size=(8, -1, 8))], "takes sides from each case"),
    ([mt.RandSpatialCropd(KEYS, roi_size=(8, 8, 8), random_size=True)], "random_size=True"),
    ([mt.RandSpatialCropSamplesd(KEYS, roi_size=8, num_samples=2, random_size=True)], "random_size=True"),
    ([mt.RandScaleCropd(KEYS, roi_scale=0.5)], "a share of each case"),
]


@pytest.mark.parametrize(("chain", "message"), LEFT, ids=[f"{type(row[0][-1]).__name__}: {row[1]}" for row in LEFT])
def test_what_is_left_to_monai(chain: list[Any], message: str) -> None:
    assert message in why(*chain)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (mt.RandRotated(KEYS, range_x=(0.5, 0.1), mode=MODES), r"RandRotated .*Affine: rotate_range=\(0\.5, 0\.1\)"),
        (mt.RandZoomd(KEYS, min_zoom=1.2, max_zoom=0.8, mode=MODES), r"RandZoomd .*Zoom: .*\(1\.2, 0\.8\)"),
        (mt.RandAffined(KEYS, scale_range=((-2, 0),), mode=MODES), "RandAffined .*Affine: scale_range"),
        (mt.RandRotate90d(KEYS, max_k=0), "RandRotate90d .*Rotate90: max_k=0"),
        (
            mt.RandRotate90d(KEYS, spatial_axes=(0, 1, 2)),
            r"RandRotate90d .*Rotate90: spatial_axes=.*; name two",
        ),
        (mt.RandRotate90d(KEYS, spatial_axes=(1, 1)), r"RandRotate90d .*Rotate90: spatial_axes=.*; name two"),
        (mt.RandGaussianSmoothd(KEY, sigma_x=(1.5, 0.5)), r"RandGaussianSmoothd .*sigma_x=\(1\.5, 0\.5\)"),
        (mt.RandGaussianNoised(KEY, std=-1.0), r"RandGaussianNoised .*std=\(0\.0, -1\.0\)"),
        (mt.RandAdjustContrastd(KEY, gamma=(-1, 2)), r"RandAdjustContrastd .*gamma=\(-1\.0, 2\.0\)"),
        (mt.MixUpd(KEYS, batch_size=2), "MixUpd: mixes the samples of a batch"),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_monai_lets_pass_is_refused(transform: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lowered(transform)


def test_a_named_label_is_never_interpolated() -> None:
    with pytest.raises(ValueError, match=r'RandRotated: mode: .*"label" .*"bilinear"'):
        lowered(mt.RandRotated(KEYS), label_keys=["label"])


def crop_of(*chain: Any, **options: Any) -> Any:
    return lowered(*chain, **options).plan.crop


def pos_neg(**options: Any) -> mt.RandCropByPosNegLabeld:
    return mt.RandCropByPosNegLabeld(KEYS, label_key="label", **{"spatial_size": (8, 9, 10), **options})


def classes(**options: Any) -> mt.RandCropByLabelClassesd:
    return mt.RandCropByLabelClassesd(KEYS, label_key="label", **{"spatial_size": (8, 9, 10), **options})


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
    result = mt.FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg", image_key="image", image_threshold=0.3)
    crop = crop_of(result, pos_neg(fg_indices_key="label_fg", bg_indices_key="label_bg"))
    assert (crop.image_key, crop.image_threshold) == ("image", 0.3)
    assert "no cached FgBgToIndicesd" in why(pos_neg(fg_indices_key="label_fg", bg_indices_key="label_bg"))
    crop = crop_of(
        mt.ClassesToIndicesd("label", num_classes=3, image_key="image"), classes(indices_key="label_cls_indices")
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
    assert crop_of(mt.RandSpatialCropd(KEYS, roi_size=(8, 9, 10))) == SpatialCrop(size=(8, 9, 10), keys=KEYS)
    result = crop_of(mt.RandSpatialCropSamplesd(KEYS, roi_size=[8, 9, 10], num_samples=3))
    assert result == SpatialCrop(size=(8, 9, 10), keys=KEYS, num_samples=3)
    assert crop_of(mt.RandSpatialCropd(KEYS, roi_size=8, random_center=False)) == CentreCrop(size=(8, 8, 8), keys=KEYS)


@pytest.mark.parametrize("after", [mt.SpatialPadd(KEYS, 8), mt.ResizeWithPadOrCropd(KEYS, (8, 8, 8))])
def test_a_pad_behind_the_crop_is_its_own(after: Any) -> None:
    """A case smaller than the patch, cropped and padded: MONAI's result, whole."""
    chain = [mt.RandSpatialCropd(KEYS, roi_size=(8, 8, 8), random_center=False), after]
    program = lowered(*chain)
    assert program.plan.crop.pad
    assert "the patch is whole already" in program.explain()
    row = item(size=(5, 10, 7))
    result = program.bind([row], batch_size=1)(0)
    wanted = mt.Compose(chain)({key: value.clone() for key, value in row.items()})
    for key in KEYS:
        assert torch.equal(result[key][0].float(), torch.as_tensor(wanted[key]).float())


def test_a_size_of_too_many_axes_is_refused_when_data_are_bound() -> None:
    program = lowered(mt.RandSpatialCropd(KEYS, roi_size=(8, 8, 8)))
    with pytest.raises(ValueError, match=r"RandSpatialCropd: roi_size=\(8, 8, 8\) .*3 axes, .*have 2"):
        program.bind([item(2)], batch_size=1)
