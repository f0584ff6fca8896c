"""MONAI's arms: nnU-Net's augmentation with MONAI's transforms, and the random parts of two of its tutorials.

Every transform is MONAI's own, on one sample at a time. By default tensors carry no metadata, as in MONAI's fast
training tutorial; `track_meta` makes them MetaTensors, which is what MONAI does unless told otherwise.

What nnU-Net does and MONAI's transforms cannot: one scaling factor for all axes (here each axis has its own), gamma
drawn half below and half above 1 (here uniformly), and blurring with the border mirrored (here zeros beyond it).
nnU-Net resamples labels by interpolating each class, MONAI by the nearest neighbour, which is less work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import torch

from benchmarks.augments.loaders import Loader, batches_of
from benchmarks.augments.patches import Batch, Brats, Case, Nnunet, Spleen, check_room

KEYS = ["image", "label"]


def nnunet(
    cases: Sequence[Case], work: Nnunet, *, loader: Loader = "processes", workers: int = 2, track_meta: bool = False
) -> Iterator[Batch]:
    """Batches of `work.batch` patches; labels float32, as MONAI resamples them."""
    check_room(cases, work.source)
    items = [{"image": case.image, "label": case.label.float()} for case in cases]
    return _run(items, nnunet_chain(work, cases[0].image.device), work.batch, loader, workers, track_meta)


def spleen(
    cases: Sequence[Case],
    work: Spleen,
    *,
    loader: Loader = "processes",
    workers: int = 2,
    track_meta: bool = False,
    indices: bool = True,
) -> Iterator[Batch]:
    """Batches of `work.cases * work.samples` crops.

    With `indices` the foreground and background voxels to crop about are listed beforehand (FgBgToIndicesd), as in the
    fast training tutorial; without, they are searched at each call, as in the spleen tutorial. Background is what is
    above 0 there. Labels stay uint8, so that less is copied than in the tutorials.
    """
    from monai.transforms import FgBgToIndicesd, RandCropByPosNegLabeld

    check_room(cases, work.side)
    items: list[dict[str, Any]] = [{"image": case.image, "label": case.label} for case in cases]
    where: dict[str, Any] = {"image_key": "image", "image_threshold": 0}
    if indices:
        listed = FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg", **where)
        items = [listed(item) for item in items]
        where = {"fg_indices_key": "label_fg", "bg_indices_key": "label_bg"}
    crop = RandCropByPosNegLabeld(
        KEYS, label_key="label", spatial_size=work.patch, pos=1, neg=1, num_samples=work.samples, **where
    )
    return _run(items, [crop], work.cases, loader, workers, track_meta)


def brats(
    cases: Sequence[Case], work: Brats, *, loader: Loader = "processes", workers: int = 2, track_meta: bool = False
) -> Iterator[Batch]:
    """Batches of `work.batch` patches with all channels of the cases; one uint8 label map, where the tutorial has 3."""
    from monai import transforms as mt

    check_room(cases, work.side)
    chain = [
        mt.RandSpatialCropd(KEYS, roi_size=work.patch, random_size=False),
        *(mt.RandFlipd(KEYS, prob=work.flip_prob, spatial_axis=axis) for axis in range(3)),
        mt.NormalizeIntensityd("image", nonzero=True, channel_wise=True),
        mt.RandScaleIntensityd("image", factors=work.scale_factors, prob=1.0),
        mt.RandShiftIntensityd("image", offsets=work.shift_offsets, prob=1.0),
    ]
    items = [{"image": case.image, "label": case.label} for case in cases]
    return _run(items, chain, work.batch, loader, workers, track_meta)


def nnunet_chain(work: Nnunet, device: torch.device | None = None) -> list[Any]:
    """From a case {"image", "label"} to a patch. The larger patch is a view, and only what is resampled is computed.

    device: where the cases lie, so that grids are computed there too; None is the CPU.
    """
    from monai import transforms as mt

    # With one channel, applying a transform and then taking the channel in is one draw.
    blur, lowres = work.blur_prob * work.channel_prob, work.lowres_prob * work.channel_prob
    sigma = work.blur_sigma
    return [
        mt.RandSpatialCropd(KEYS, roi_size=(work.source,) * 3, random_size=False),
        _spatial(work, device),
        mt.RandGaussianNoised("image", prob=work.noise_prob, std=work.noise_std[1], sample_std=True),
        mt.RandGaussianSmoothd("image", prob=blur, sigma_x=sigma, sigma_y=sigma, sigma_z=sigma),
        mt.RandScaleIntensityd("image", prob=work.brightness_prob, factors=_less_one(work.brightness_range)),
        mt.RandScaleIntensityFixedMeand(
            "image", prob=work.contrast_prob, factors=_less_one(work.contrast_range), preserve_range=True
        ),
        mt.RandSimulateLowResolutiond(
            "image", prob=lowres, zoom_range=work.lowres_scale, downsample_mode="nearest-exact"
        ),
        mt.RandAdjustContrastd(
            "image", prob=work.gamma_inverted_prob, gamma=work.gamma_range, invert_image=True, retain_stats=True
        ),
        mt.RandAdjustContrastd("image", prob=work.gamma_prob, gamma=work.gamma_range, retain_stats=True),
        *(mt.RandFlipd(KEYS, prob=work.flip_prob, spatial_axis=axis) for axis in range(3)),
    ]


def _spatial(work: Nnunet, device: torch.device | None) -> Any:
    """Rotation and scaling, drawn independently; a patch that has neither is only cropped.

    RandAffined by itself would resample each patch, since its size differs from what is cut first.
    """
    from monai import transforms as mt

    rotate = {"rotate_range": (math.radians(work.rotate_deg),) * 3}
    scale = {"scale_range": (_less_one(work.scale_range),) * 3}
    shared: dict[str, Any] = {
        "mode": ("bilinear", "nearest"), "padding_mode": "zeros", "spatial_size": work.patch, "cache_grid": True,
        "device": device,
    }  # fmt: skip
    moves = [mt.RandAffined(KEYS, prob=1.0, **range_, **shared) for range_ in (rotate, scale, rotate | scale)]
    return mt.OneOf([mt.CenterSpatialCropd(KEYS, roi_size=work.patch), *moves], weights=work.spatial_probs())


def _less_one(values: tuple[float, float]) -> tuple[float, float]:
    """MONAI's ranges of factors are about 0."""
    return values[0] - 1, values[1] - 1


def _run(
    items: list[dict[str, Any]], chain: list[Any], batch: int, loader: Loader, workers: int, track_meta: bool
) -> Iterator[Batch]:
    from monai.data import Dataset, MetaTensor, get_track_meta, set_track_meta
    from monai.transforms import Compose

    if track_meta:
        items = [item | {key: MetaTensor(item[key]) for key in KEYS} for item in items]
    before = get_track_meta()
    set_track_meta(track_meta)
    try:
        with closing(batches_of(Dataset(items, Compose(chain)), batch, loader, workers)) as result:
            for item in result:
                yield item["image"], item["label"]
    finally:
        set_track_meta(before)
