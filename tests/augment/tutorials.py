"""Chains in the manner of MONAI's tutorials and bundles, written from what they do, on small arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import monai.transforms as mt
import numpy as np

Rows = list[dict[str, Any]]
BOTH = ["image", "label"]
MODES = ["bilinear", "nearest"]
P = (12, 12, 12)


def volumes(channels: int = 1, classes: int = 3, count: int = 3, size: tuple[int, ...] = (20, 24, 22)) -> Rows:
    """The image is brighter the higher the class of a voxel, so that a label out of place shows."""
    rows = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        grid = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), -1)
        label = np.zeros(size, np.uint8)
        for number in range(1, classes):
            centre = rng.uniform(0.35, 0.65, len(size)) * size
            label[((grid - centre) ** 2).sum(-1) < (9 - 2 * number) ** 2] = number
        image = label + 0.1 * rng.normal(size=(max(channels, 1), *size))
        rows.append({"image": (image * 100).astype(np.float32), "label": label[None]})
    return rows


def pictures(count: int = 3, size: int = 48) -> Rows:
    """Colour, channels with four nuclei numbered and typed."""
    rows = []
    y, x = np.mgrid[:size, :size]
    for seed in range(count):
        rng, inst = np.random.default_rng(seed), np.zeros((size, size), np.int32)
        for number, (row, column) in enumerate([(14, 14), (14, 34), (32, 16), (34, 34)], 1):
            inst[(y - row) ** 2 + (x - column) ** 2 < rng.integers(20, 50)] = number
        image = 60 + 120 * (inst > 0) + rng.integers(0, 40, (3, size, size))
        kind = (inst > 0) * (1 + inst % 2)
        rows.append(
            {"image": image.astype(np.uint8), "label_inst": inst[None], "label_type": kind.astype(np.int32)[None]}
        )
    return rows


def masks(count: int = 3) -> Rows:
    return [{"image": row["image"], "label": (row["label_inst"] > 0).astype(np.uint8)} for row in pictures(count)]


def classified(count: int = 3) -> Rows:
    return [{"image": row["image"], "label": seed % 2} for seed, row in enumerate(pictures(count))]


def tiles(grid: int, count: int = 3) -> Rows:
    labels = np.arange(grid * grid, dtype=np.float32)
    return [{**row, "label": labels.copy(), "name": "slide", "location": (3, 4)} for row in classified(count)]


def window() -> list[Any]:
    return [mt.ScaleIntensityRanged("image", a_min=-50, a_max=250, b_min=0, b_max=1, clip=True)]


def standard() -> list[Any]:
    norm = mt.NormalizeIntensityd("image", nonzero=True, channel_wise=True)
    return [norm]


def flips(keys: list[str] = BOTH, prob: float = 0.5, dims: int = 3) -> list[Any]:
    return [mt.RandFlipd(keys, prob=prob, spatial_axis=axis) for axis in range(dims)]


def pos_neg(size: Any = P, samples: int = 2, **options: Any) -> Any:
    return mt.RandCropByPosNegLabeld(
        BOTH, label_key="label", spatial_size=size, pos=1, neg=1, num_samples=samples, **options
    )


def intensity(prob: float = 0.5) -> list[Any]:
    return [
        mt.RandScaleIntensityd("image", factors=0.1, prob=prob),
        mt.RandShiftIntensityd("image", offsets=0.1, prob=prob),
    ]


def nnunet_values() -> list[Any]:
    return [
        mt.RandGaussianNoised("image", std=0.01, prob=0.15),
        mt.RandGaussianSmoothd(
            "image", sigma_x=(0.5, 1.15), sigma_y=(0.5, 1.15), sigma_z=(0.5, 1.15), prob=0.15
        ),
        mt.RandScaleIntensityd("image", factors=0.3, prob=0.15),
    ]  # fmt: skip


def zoom() -> Any:
    return mt.RandZoomd(
        BOTH, min_zoom=0.9, max_zoom=1.2, mode=["trilinear", "nearest"], align_corners=[True, None], prob=0.16
    )


def by_class(key: str = "label", **options: Any) -> Any:
    return mt.RandCropByLabelClassesd(
        BOTH, label_key=key, spatial_size=P, num_classes=3, ratios=[1, 1, 1], num_samples=2, **options
    )


def dints() -> list[Any]:
    """The weights of classes in the crop are a one-hot copy of the label that is dropped after it."""

    def one_hot(label: Any) -> Any:
        return np.concatenate([(np.asarray(label) == each).astype(np.float32) for each in range(3)])

    return [
        *window(), mt.CastToTyped(BOTH, dtype=(np.float32, np.uint8)),
        mt.CopyItemsd("label", times=1, names=["label4crop"]),
        mt.Lambdad("label4crop", func=one_hot),
        mt.SpatialPadd([*BOTH, "label4crop"], spatial_size=(24, 24, 24), mode=["reflect", "constant", "constant"]),
        by_class("label4crop"), mt.DeleteItemsd("label4crop"),
        mt.RandRotated(BOTH, range_x=0.3, range_y=0.3, range_z=0.3, mode=MODES, prob=0.2), zoom(), *nnunet_values(),
        *intensity(), *flips(), mt.CastToTyped(BOTH, dtype=(np.float32, np.uint8)), mt.EnsureTyped(BOTH),
    ]  # fmt: skip


def camelyon(*before: Any) -> list[Any]:
    return [
        *before, mt.RandFlipd("image", prob=0.5), mt.RandRotate90d("image", prob=0.5, max_k=3, spatial_axes=(-2, -1)),
        mt.CastToTyped("image", dtype=np.float32),
        mt.RandZoomd("image", prob=0.5, min_zoom=0.9, max_zoom=1.1, mode="bilinear"),
        mt.ScaleIntensityRanged("image", a_min=0, a_max=255, b_min=-1, b_max=1), mt.ToTensord(BOTH),
    ]  # fmt: skip


def as_grid(side: int, *, channel: bool = True) -> Any:
    return mt.Lambdad("label", func=lambda x: np.asarray(x).reshape(*[1] * channel, side, side))


def split() -> Any:
    return mt.GridSplitd(("image", "label"), grid=(2, 2), size={"image": 24, "label": 1})


def brats(size: Any = P) -> list[Any]:
    regions = mt.ConvertToMultiChannelBasedOnBratsClassesd("label")
    return [
        regions, mt.RandSpatialCropd(BOTH, roi_size=size, random_size=False), *flips(),
        mt.NormalizeIntensityd("image", nonzero=True, channel_wise=True), *intensity(1.0),
    ]  # fmt: skip


def volume_chains() -> dict[str, tuple[Callable[[], Rows], list[Any]]]:
    rotate = mt.RandRotate90d(BOTH, prob=0.1, max_k=3)
    holes = mt.RandCoarseDropoutd("image", prob=0.5, holes=3, spatial_size=4, fill_value=0)
    chains: dict[str, list[Any]] = {
        "spleen": [*window(), mt.CropForegroundd(BOTH, source_key="image"), pos_neg(samples=4, image_key="image")],
        "spleen indices": [
            *window(), mt.FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg", image_key="image"),
            pos_neg(fg_indices_key="label_fg", bg_indices_key="label_bg"),
        ],
        "btcv swin": [*window(), pos_neg(allow_smaller=True), *flips(prob=0.1), rotate, *intensity()],
        "btcv classes": [
            *window(), mt.ClassesToIndicesd("label", num_classes=3), by_class(indices_key="label_cls_indices"),
            *flips(),
        ],
        "hippocampus": [
            *standard(), mt.SpatialPadd(BOTH, spatial_size=24), mt.RandSpatialCropd(BOTH, roi_size=P), *flips(),
        ],
        "dynunet": [*standard(), pos_neg(), zoom(), *nnunet_values(), *flips()],
        "dints": dints(),
        "low resolution": [*standard(), pos_neg(), mt.RandSimulateLowResolutiond("image", prob=0.5), *nnunet_values()],
        "self-supervised": [
            *window(), mt.RandSpatialCropSamplesd(BOTH, roi_size=P, num_samples=2, random_size=False), holes,
        ],
    }  # fmt: skip
    return {name: (volumes, chain) for name, chain in chains.items()} | {"brats": (lambda: volumes(4, 4), brats())}


def picture_chains() -> dict[str, tuple[Callable[[], Rows], list[Any]]]:
    scale = mt.ScaleIntensityd("image")
    colours = [
        mt.RandAdjustContrastd("image", prob=0.5), mt.RandGaussianNoised("image", prob=0.5, std=0.05),
    ]  # fmt: skip
    return {
        "cells": (
            masks,
            [scale, mt.RandZoomd(BOTH, prob=0.5, mode=["bilinear", "nearest"]),
             mt.RandSpatialCropd(BOTH, roi_size=(32, 32), random_size=False), *flips(dims=2), *colours],
        ),
        "mednist": (
            classified,
            [scale, mt.RandRotated("image", range_x=np.pi / 12, prob=0.5), mt.RandFlipd("image", prob=0.5),
             mt.RandZoomd("image", min_zoom=0.9, max_zoom=1.1, prob=0.5)],
        ),
        "camelyon": (lambda: tiles(1), camelyon(as_grid(1, channel=False))),
        "camelyon grid": (lambda: tiles(2), camelyon(as_grid(2), split())),
    }  # fmt: skip


CHAINS = volume_chains() | picture_chains()
