"""Transforms that move values: with numbers that leave nothing to chance, a lowered one gives what MONAI gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from monai.transforms import (
    CenterSpatialCropd,
    DivisiblePadd,
    Flipd,
    Rand3DElasticd,
    RandAffined,
    RandFlipd,
    RandGaussianNoised,
    RandRotate90d,
    RandRotated,
    RandSpatialCropd,
    RandZoomd,
    Resized,
    ResizeWithPadOrCropd,
    SpatialPadd,
)

from hasten.augment.grid import Cut
from tests.augment.lowering import KEYS, both, error, inner, lowered, why

MODES = ("bilinear", "nearest")
QUIET = RandFlipd(KEYS, prob=0)
"""Before a deterministic transform, which would be cached otherwise."""
CUBE = {"size": (14, 14, 14)}

EXACT: list[tuple[Any, ...]] = [
    (RandFlipd(KEYS, prob=1, spatial_axis=0),),
    (RandFlipd(KEYS, prob=1, spatial_axis=(0, -1)),),
    (RandFlipd(KEYS, prob=1),),
    (RandFlipd("image", prob=1, spatial_axis=1),),
    (RandFlipd(KEYS, prob=1, spatial_axis=1, lazy=True),),
    (QUIET, Flipd(KEYS, spatial_axis=1)),
    (QUIET, CenterSpatialCropd(KEYS, roi_size=9)),
    (QUIET, CenterSpatialCropd(KEYS, roi_size=10)),
    (QUIET, ResizeWithPadOrCropd(KEYS, spatial_size=11)),
    (QUIET, SpatialPadd(KEYS, spatial_size=10)),
    (QUIET, DivisiblePadd(KEYS, k=2)),
    (RandSpatialCropd(KEYS, roi_size=9, random_center=False),),
]


@pytest.mark.parametrize("chain", EXACT, ids=lambda chain: "+".join(type(each).__name__ for each in chain))
@pytest.mark.parametrize("dims", [2, 3])
def test_whole_voxels_are_moved_as_monai_moves_them(chain: tuple[Any, ...], dims: int) -> None:
    result, wanted = both(*chain, dims=dims)
    assert torch.equal(result["image"], wanted["image"])
    assert torch.equal(result["label"].float(), wanted["label"].float())


@pytest.mark.parametrize("max_k", [1])
@pytest.mark.parametrize("axes", [(0, 1), (1, 2), (-2, -1)])
def test_a_random_quarter_turn(max_k: int, axes: tuple[int, int]) -> None:
    result, wanted = both(RandRotate90d(KEYS, prob=1, max_k=max_k, spatial_axes=axes), **CUBE)
    assert torch.equal(result["image"], wanted["image"])


def affine(**options: Any) -> RandAffined:
    given = {
        "rotate_range": ((0.3, 0.3), (0.1, 0.1), (-0.2, -0.2)), "shear_range": ((0.1, 0.1),),
        "translate_range": ((1.5, 1.5), (-2, -2)), "scale_range": ((0.1, 0.1), (0.1, 0.1), (-0.1, -0.1)), **options,
    }  # fmt: skip
    return RandAffined(KEYS, prob=1, mode=MODES, **given)


BETWEEN: list[Any] = [
    affine(padding_mode="zeros"),
    affine(padding_mode="border"),
    affine(padding_mode="reflection"),
    affine(padding_mode="zeros", spatial_size=-1),
    RandRotated(KEYS, range_x=(0.4, 0.4), range_y=(0.2, 0.2), range_z=(-0.3, -0.3), prob=1, mode=MODES),
    RandRotated(KEYS, range_x=(0.4, 0.4), prob=1, mode=MODES, padding_mode="zeros", dtype=np.float64),
]


@pytest.mark.parametrize("transform", BETWEEN, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("dims", [2, 3])
def test_interpolation_is_monais(transform: Any, dims: int) -> None:
    result, wanted = both(transform, dims=dims)
    assert error(result["image"], wanted["image"]) < 2e-4
    assert (result["label"] != wanted["label"]).float().mean() < 0.005  # a rounding either way at halves


@pytest.mark.parametrize("out", [(9, 20, 14), (16, 16, 16)])
def test_a_resize_is_monais(out: tuple[int, ...]) -> None:
    for dims in (2, 3):
        size = out[:dims]
        modes = ("trilinear" if dims == 3 else "bilinear", "nearest-exact")
        result, wanted = both(QUIET, Resized(KEYS, spatial_size=size, mode=modes), dims=dims)
        assert error(result["image"], wanted["image"]) < 2e-4
        assert (result["label"] != wanted["label"]).float().mean() < 0.12  # halves


def test_a_second_crop_is_a_cut() -> None:
    program = lowered(RandSpatialCropd(KEYS, roi_size=12), RandFlipd(KEYS), RandSpatialCropd(KEYS, roi_size=(8, 8, 8)))
    (_, cut) = program.plan.ops
    assert isinstance(cut, Cut)
    assert cut.random
    assert cut.size == (8, 8, 8)


def test_a_chain_of_maps_is_monais_within() -> None:
    """One interpolation in place of three, on an image smooth enough for the difference not to matter much."""
    chain = [
        RandRotated(KEYS, range_x=(0.1, 0.1), prob=1, mode=MODES, padding_mode="border"),
        RandZoomd(KEYS, prob=1, min_zoom=1.1, max_zoom=1.1, mode=("trilinear", "nearest"), padding_mode="edge"),
        RandFlipd(KEYS, prob=1, spatial_axis=1),
    ]
    result, wanted = both(*chain, size=(20, 20, 20))
    assert error(inner(result["image"], 5), inner(wanted["image"], 5)) < 0.06
    assert (inner(result["label"], 5) == inner(wanted["label"], 5)).float().mean() > 0.7
    apart, wanted = both(chain[0], RandGaussianNoised("image", prob=1, std=0.0), chain[2], size=(20, 20, 20))
    assert error(apart["image"], wanted["image"]) < 2e-4


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (RandZoomd(KEYS), 'reads "image" with mode=area'),
        (RandRotated(KEYS, mode=3), "mode=3"),
        (RandRotated(KEYS, keep_size=False, mode=MODES), "keep_size=False"),
        (RandZoomd(KEYS, keep_size=False, mode=MODES), "keep_size=False"),
        (RandRotated(KEYS, mode=MODES, align_corners=True), "align_corners=True"),
        (RandRotated(KEYS, mode=MODES, dtype=np.float16), "dtype=float16"),
        (RandRotated(KEYS, mode=MODES, padding_mode=("border", "zeros")), "padding modes ['border', 'zeros']"),
        (RandZoomd(KEYS, mode=MODES, padding_mode="reflect"), "padding_mode=reflect"),
        (RandZoomd(KEYS, mode=MODES, padding_mode="constant", constant_values=3), "arguments for padding"),
        (RandRotated(KEYS), 'reads "label", which looks like a label, with mode=bilinear'),
        (RandFlipd(KEYS, allow_missing_keys=True), "allow_missing_keys=True"),
        (Rand3DElasticd(KEYS, (1, 2), (1, 2)), "deforms elastically"),
        (affine(spatial_size=(8, 12, 10)), "gives another size than it gets"),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_is_left_to_monai(transform: Any, message: str) -> None:
    assert message in why(transform)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Resized(KEYS, spatial_size=(8, 8, 8)), "mode=area"),
        (Resized(KEYS, spatial_size=8, size_mode="longest", mode=MODES), "size_mode=longest"),
        (Resized(KEYS, spatial_size=(8, 8, 8), mode=MODES, anti_aliasing=(True, False)), "anti_aliasing"),
        (Resized("image", spatial_size=(8, 8, 8), mode="bilinear"), 'leaves "label" as it is'),
        (CenterSpatialCropd("image", roi_size=8), 'leaves "label" as it is'),
        (SpatialPadd(KEYS, spatial_size=20), "pads from (12, 12, 12) to (20, 20, 20)"),
        (ResizeWithPadOrCropd(KEYS, spatial_size=20), "pads from (12, 12, 12) to (20, 20, 20)"),
        (DivisiblePadd(KEYS, k=8), "pads (12, 12, 12) to a multiple of 8"),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_is_left_to_monai_after_random_ones(transform: Any, message: str) -> None:
    assert message in why(RandSpatialCropd(KEYS, roi_size=12), transform)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (RandRotated(KEYS, range_x=(0.5, 0.1), mode=MODES), r"RandRotated .*Rotate: range_x=\(0\.5, 0\.1\)"),
        (RandZoomd(KEYS, min_zoom=1.2, max_zoom=0.8, mode=MODES), r"RandZoomd .*Zoom: .*\(1\.2, 0\.8\)"),
        (RandAffined(KEYS, scale_range=((-2, 0),), mode=MODES), "RandAffined .*Affine: scale_range"),
        (RandRotate90d(KEYS, max_k=0), "RandRotate90d .*Rotate90: max_k=0"),
        (
            RandAffined(KEYS, spatial_size=(8, 8), mode=MODES, translate_range=1, rotate_range=((1, 0),)),
            r"RandAffined .*Affine: rotate_range=\(1\.0, 0\.0\)",
        ),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, str) else None,
)
def test_what_monai_lets_pass_is_refused(transform: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lowered(transform)


def test_a_named_label_is_never_interpolated() -> None:
    with pytest.raises(ValueError, match=r'RandRotated: mode: .*"label" .*"bilinear"'):
        lowered(RandRotated(KEYS), label_keys=["label"])
    with pytest.raises(ValueError, match='RandZoomd: mode: the label key "label" is given "area"'):
        lowered(RandZoomd("label"), label_keys=["label"])


def test_a_quarter_turn_of_a_flat_patch_is_refused_when_the_size_is_known() -> None:
    with pytest.raises(ValueError, match=r"RandRotate90d .*Rotate90: spatial_axes=\(0, 1\) are 8 and"):
        lowered(RandSpatialCropd(KEYS, roi_size=(8, 12, 12)), RandRotate90d(KEYS))


@pytest.mark.parametrize("factor", [0.8, 1.3, (0.8, 1.2)])
@pytest.mark.parametrize("align", [None, False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_zoom_is_monais_within(factor: Any, align: bool | None, dims: int) -> None:
    modes = ("bilinear", "nearest-exact")
    zoom = RandZoomd(KEYS, prob=1, min_zoom=factor, max_zoom=factor, mode=modes, align_corners=(align, None))
    result, wanted = both(zoom, dims=dims)
    assert error(inner(result["image"], 4), inner(wanted["image"], 4)) < 2e-4
    if not align:
        assert (inner(result["label"], 4) != inner(wanted["label"], 4)).float().mean() < 0.05  # halves
