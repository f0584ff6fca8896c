"""Ready chains: nnU-Net's default augmentation, MONAI's spleen and BraTS tutorials, and its pathology tutorial."""

from __future__ import annotations

import math

from hasten.augment.affine import Spatial, Zoom
from hasten.augment.chain import Chain
from hasten.augment.colour import ColorJitter
from hasten.augment.contrast import Contrast, Gamma
from hasten.augment.crop import CropByPosNegLabel, CropOp, SpatialCrop
from hasten.augment.grid import Flip, Mirror, Rotate90
from hasten.augment.intensity import Brightness, Normalize, ScaleIntensity, ShiftIntensity
from hasten.augment.lowres import SimulateLowResolution
from hasten.augment.noise import GaussianNoise
from hasten.augment.smooth import Blur
from hasten.config.schema import Triple

_PAIR = ("image", "label")
_IMAGE = ("image",)
_LABEL = ("label",)


def nnunet_chain(
    patch: Triple,
    *,
    num_channels: int = 1,
    crop: CropOp | None = None,
    rotate_deg: float = 30.0,
    spatial_dims: int = 3,
) -> Chain:
    """The random transforms of nnU-Net 2.8's default trainer, on patches cut at random (or by `crop`).

    patch: (D, H, W). Mirroring stands beside rotation and scaling, with which it shares one interpolation; nnU-Net has
    it at the end, but all between treats directions alike. Blur and low resolution take in a channel with 0.5; of an
    image with one channel that is half of their probability.
    """
    turn = math.radians(rotate_deg)
    chance, each = (0.5, 1.0) if num_channels == 1 else (1.0, 0.5)
    return Chain(
        crop=crop or SpatialCrop(size=patch, pad=True),
        ops=(
            Spatial(rotate_prob=0.2, rotate=(-turn, turn), scale_prob=0.2, scale=(0.7, 1.4)),
            Mirror(spatial_axis=tuple(range(spatial_dims))),
            GaussianNoise(prob=0.1, std=(0.0, 0.1)),
            Blur(prob=0.2 * chance, blur_sigma=(0.5, 1.0), p_per_channel=each),
            Brightness(prob=0.15, multiplier_range=(0.75, 1.25)),
            Contrast(prob=0.15, contrast_range=(0.75, 1.25)),
            SimulateLowResolution(
                prob=0.25 * chance, zoom_range=(0.5, 1.0), synchronize_channels=False, p_per_channel=each
            ),
            Gamma(prob=0.1, gamma=(0.7, 1.5), p_invert_image=1.0),
            Gamma(prob=0.3, gamma=(0.7, 1.5)),
        ),
        keys=_PAIR, label_keys=_LABEL,
    )  # fmt: skip


def spleen_chain(patch: Triple = (96, 96, 96), *, num_samples: int = 4) -> Chain:
    """The random part of MONAI's spleen tutorial: crops, about foreground half of the time."""
    crop = CropByPosNegLabel(size=patch, num_samples=num_samples, image_key="image")
    return Chain(crop=crop, ops=(), keys=_PAIR, label_keys=_LABEL)


def brats_chain(patch: Triple = (224, 224, 144)) -> Chain:
    """The random part of MONAI's BraTS tutorial, with the normalisation that stands in its midst."""
    flips = tuple(Flip(prob=0.5, spatial_axis=(axis,)) for axis in range(3))
    return Chain(
        crop=SpatialCrop(size=patch),
        ops=(
            *flips,
            Normalize(nonzero=True, channel_wise=True),
            ScaleIntensity(prob=1.0, factors=(-0.1, 0.1)),
            ShiftIntensity(prob=1.0, offsets=(-0.1, 0.1)),
        ),
        keys=_PAIR, label_keys=_LABEL,
    )  # fmt: skip


def pathology_chain(*, value_range: float = 1.0) -> Chain:
    """The random part of MONAI's tumor detection tutorial on square RGB tiles.

    Zooming is bilinear, where MONAI's default averages areas. value_range: 1, or 255.
    """
    return Chain(
        crop=None,
        ops=(
            ColorJitter(
                brightness=64.0 / 255.0, contrast=0.75, saturation=0.25, hue=0.04, value_range=value_range
            ),
            Flip(prob=0.5, keys=_IMAGE),
            Rotate90(prob=0.5, keys=_IMAGE),
            Zoom(prob=0.5, min_zoom=(0.9,), max_zoom=(1.1,), mode=("bilinear",), keys=_IMAGE),
        ),
        keys=("image",),
    )  # fmt: skip
