"""Preset chains: nnU-Net's default augmentation, MONAI's spleen and BraTS tutorials, and its pathology tutorial."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hasten.augment.affine import PhysicalAffine, Spatial, Zoom
from hasten.augment.chain import Chain
from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import Contrast, Gamma
from hasten.augment.crop import CropByPosNegLabel, CropOp, ForegroundCrop, SpatialCrop
from hasten.augment.grid import Flip, Mirror, Rotate90
from hasten.augment.intensity import Brightness, Normalize, ScaleIntensity, ShiftIntensity
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.noise import GaussianNoise
from hasten.augment.smooth import Blur
from hasten.config.augment import ROTATE_DEG, SCALE_RANGE
from hasten.config.schema import SampleConfig, Triple

_PAIR = ("image", "label")
_IMAGE = ("image",)
_LABEL = ("label",)
_NARROW = 1.5
"""2-D patches whose sides differ by more are turned by 15 degrees at most, others all around, as in nnU-Net."""


def _chain(crop: CropOp | None, *ops: Any) -> Chain:
    return Chain(crop=crop, ops=ops, keys=_PAIR, label_keys=_LABEL)


def nnunet_chain(
    patch: Triple,
    *,
    num_channels: int = 1,
    crop: CropOp | None = None,
    rotate_deg: float = 30.0,
    spatial_dims: int = 3,
    mirror_axes: Sequence[int] | None = None,
    in_plane: bool = False,
    label_mode: str = "nearest",
) -> Chain:
    """The random transforms of nnU-Net 2.8's default trainer, on patches cut at random (or by `crop`).

    patch: (D, H, W). mirror_axes: spatial axes; None for all. in_plane: 3-D patches are augmented slice by slice, all
    slices alike (nnU-Net's `do_dummy_2d_data_aug`). label_mode: "majority" reads label maps as nnU-Net does, at some
    times the cost of "nearest"; they differ at the borders of classes. Mirroring stands beside rotation and scaling,
    with which it shares one interpolation; nnU-Net mirrors last, but all between treats directions alike. Blur and
    low resolution take in a channel with 0.5; of an image with one channel that is half of their probability.
    """
    turn = math.radians(rotate_deg)
    chance, each = (0.5, 1.0) if num_channels == 1 else (1.0, 0.5)
    axes = tuple(range(spatial_dims) if mirror_axes is None else mirror_axes)
    coarse: dict[str, Any] = {"zoom_range": (0.5, 1.0), "synchronize_channels": False, "p_per_channel": each}
    return _chain(
        crop or SpatialCrop(size=patch, pad=True),
        Spatial(
            rotate_prob=0.2,
            rotate=(-turn, turn),
            scale_prob=0.2,
            scale=(0.7, 1.4),
            in_plane=in_plane,
            mode=("bilinear", label_mode),
            keys=_PAIR,
        ),
        *([Mirror(spatial_axis=axes, keys=_PAIR)] if axes else []),
        GaussianNoise(prob=0.1, std=(0.0, 0.1)),
        Blur(prob=0.2 * chance, blur_sigma=(0.5, 1.0), p_per_channel=each),
        Brightness(prob=0.15, multiplier_range=(0.75, 1.25)),
        Contrast(prob=0.15, contrast_range=(0.75, 1.25)),
        SimulateLowResolution(prob=0.25 * chance, ignore_axes=(0,) if in_plane else (), **coarse),
        Gamma(prob=0.1, gamma=(0.7, 1.5), p_invert_image=1.0),
        Gamma(prob=0.3, gamma=(0.7, 1.5)),
    )


def spleen_chain(
    patch: Triple = (96, 96, 96), *, num_samples: int = 4, foreground_prob: float = 0.5, pad: bool = False
) -> Chain:
    """The random part of MONAI's spleen tutorial: crops, about foreground half of the time."""
    crop = CropByPosNegLabel(
        size=patch, num_samples=num_samples, image_key="image", pos=foreground_prob, neg=1.0 - foreground_prob, pad=pad
    )
    return _chain(crop)


def brats_chain(patch: Triple = (224, 224, 144), *, crop: CropOp | None = None, spatial_dims: int = 3) -> Chain:
    """The random part of MONAI's BraTS tutorial, with the normalisation in the middle of it."""
    return _chain(
        crop or SpatialCrop(size=patch),
        *(Flip(prob=0.5, spatial_axis=(axis,)) for axis in range(spatial_dims)),
        Normalize(nonzero=True, channel_wise=True),
        ScaleIntensity(prob=1.0, factors=(-0.1, 0.1)),
        ShiftIntensity(prob=1.0, offsets=(-0.1, 0.1)),
    )


def pathology_chain(*, value_range: float = 1.0, crop: CropOp | None = None, label: bool = False) -> Chain:
    """The random part of MONAI's tumor detection tutorial on RGB tiles, square in their last two axes.

    Zooming is bilinear, where MONAI's default averages areas. value_range: 1, or 255. label: whether there is a label
    map, which moves with the image.
    """
    keys, modes = (_PAIR, ("bilinear", "nearest")) if label else (_IMAGE, ("bilinear",))
    return Chain(
        crop=crop,
        ops=(
            ColorJitter(brightness=64.0 / 255.0, contrast=0.75, saturation=0.25, hue=0.04, value_range=value_range),
            Flip(prob=0.5, keys=keys),
            Rotate90(prob=0.5, keys=keys, spatial_axes=(-2, -1)),
            Zoom(prob=0.5, min_zoom=(0.9,), max_zoom=(1.1,), mode=modes, keys=keys),
        ),
        keys=keys,
        label_keys=_LABEL if label else (),
    )


def default_chain(
    sample: SampleConfig, *, patch: Triple, spatial_dims: int, spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)
) -> Chain:
    """The default augmentation of `hasten train`, with the strengths of `sample`.

    spacing: voxel size (D, H, W) of prepared cases, which rotations are made in.
    """
    flips = (sample.flip_prob or (0.0, 0.0, 0.0))[3 - spatial_dims :]
    alike: dict[str, Any] = {"synchronize_channels": True, "around_one": False}
    turn, zoom = sample.rotate_deg or ROTATE_DEG, sample.scale_range or SCALE_RANGE
    return _chain(
        ForegroundCrop(size=patch, foreground_prob=sample.foreground_prob),
        PhysicalAffine(prob=sample.affine_prob, rotate_deg=turn, zoom=zoom, spacing=spacing),
        *(Flip(prob=prob, spatial_axis=(axis,)) for axis, prob in enumerate(flips)),
        ScaleIntensity(prob=sample.brightness_prob, factors=(-0.25, 0.25)),
        Contrast(prob=sample.contrast_prob, **alike),
        Gamma(prob=sample.gamma_prob, gamma=(0.7, 1.5), p_retain_stats=0.0, **alike),
        GaussianNoise(prob=sample.noise_prob, std=(0.0, 0.1)),
    )


def preset_chain(preset: str, *, crop: CropOp, foreground_prob: float, spatial_dims: int, num_channels: int) -> Chain:
    """`augment.preset`, but for `default`, for a run, with the run's `crop`; only `spleen` has a crop of its own.

    Of `spleen`'s 4 patches a case one is left: they spare reading a case, which costs a run nothing, and make batches
    of fewer cases.
    """
    patch = crop.size
    match preset:
        case "nnunet":
            narrow = max(patch[1:]) > _NARROW * min(patch[1:])
            turn = 30.0 if spatial_dims == 3 else 15.0 if narrow else 180.0
            return nnunet_chain(patch, num_channels=num_channels, crop=crop, rotate_deg=turn, spatial_dims=spatial_dims)
        case "spleen":
            return spleen_chain(patch, num_samples=1, foreground_prob=foreground_prob, pad=True)
        case "brats":
            return brats_chain(patch, crop=crop, spatial_dims=spatial_dims)
        case "pathology":
            return pathology_chain(crop=crop, label=True)
        case _:
            return _chain(crop)
