"""Losses with MONAI's arguments and definitions, in fewer passes over the voxels."""

from hasten.nets.losses.deep_supervision import DeepSupervisionLoss
from hasten.nets.losses.modules import (
    DiceCELoss,
    DiceFocalLoss,
    DiceLoss,
    FocalTverskyLoss,
    TverskyCELoss,
    TverskyLoss,
)
from hasten.nets.losses.regions import RegionLoss, region_masks

__all__ = [
    "DeepSupervisionLoss",
    "DiceCELoss",
    "DiceFocalLoss",
    "DiceLoss",
    "FocalTverskyLoss",
    "RegionLoss",
    "TverskyCELoss",
    "TverskyLoss",
    "region_masks",
]
