"""The scores of one case: Dice, IoU, HD95 and NSD of each class, as MONAI defines them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hasten.prepare.threads import one_torch_thread

MEASURES = ("dice", "iou", "hd95", "nsd")


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseScore:
    """One class, or region, of one case."""

    case: str
    name: str
    labelled: int
    """Voxels that the label map holds."""
    predicted: int
    dice: float
    """nan where neither holds the class, 0 where only one of them does; IoU and NSD alike."""
    iou: float
    hd95: float = math.nan
    """Distance in mm or px; inf where only one holds the class, nan where neither does or surfaces are not measured."""
    nsd: float = math.nan


def score_case(
    case: str,
    prediction: np.ndarray,
    label: np.ndarray,
    members: Mapping[str, Sequence[int]],
    *,
    spacing: tuple[float, float, float],
    tolerance: float = 1.0,
    surfaces: bool = True,
) -> list[CaseScore]:
    """A score for each of `members`: name of a class or region to the label values that belong to it.

    prediction, label: (D, H, W) label values of one grid. spacing: of it (D, H, W), in mm or px. tolerance: distance up
    to which NSD takes two surfaces for equal, in the same unit. surfaces: whether HD95 and NSD are measured.
    """
    assert prediction.shape == label.shape
    scores = []
    for name, values in members.items():
        predicted_mask, true_mask = (np.isin(array, list(values)) for array in (prediction, label))
        both, predicted, labelled = (
            int(np.count_nonzero(mask)) for mask in (predicted_mask & true_mask, predicted_mask, true_mask)
        )
        any_voxel = predicted + labelled > 0
        # From counts: MONAI's functions need one-hot volumes of float32, tens of times the memory for the same ratio.
        dice = 2 * both / (predicted + labelled) if any_voxel else math.nan
        iou = both / (predicted + labelled - both) if any_voxel else math.nan
        hd95, nsd = (math.nan, math.nan)
        if surfaces:
            hd95, nsd = surface_scores(predicted_mask, true_mask, spacing=spacing, tolerance=tolerance)
        scores.append(
            CaseScore(
                case=case, name=name, labelled=labelled, predicted=predicted, dice=dice, iou=iou, hd95=hd95, nsd=nsd
            )
        )  # fmt: skip
    return scores


def surface_scores(
    predicted_mask: np.ndarray, true_mask: np.ndarray, *, spacing: tuple[float, float, float], tolerance: float
) -> tuple[float, float]:
    """HD95, in the unit of `spacing`, and NSD of two masks (D, H, W) bool, by MONAI.

    One slice is measured in its plane.
    """
    if not predicted_mask.any() or not true_mask.any():
        neither = not predicted_mask.any() and not true_mask.any()
        return (math.nan, math.nan) if neither else (math.inf, 0.0)
    # Imported here, as MONAI takes seconds.
    from monai.metrics import compute_hausdorff_distance, compute_surface_dice

    box = bounding_box(predicted_mask | true_mask)
    masks = [torch.from_numpy(np.ascontiguousarray(mask[box]))[None, None] for mask in (predicted_mask, true_mask)]
    lengths: Sequence[float] = spacing
    if 1 in predicted_mask.shape:
        across = predicted_mask.shape.index(1)
        masks, lengths = [mask.squeeze(2 + across) for mask in masks], [*spacing[:across], *spacing[across + 1 :]]
    with one_torch_thread():
        hd95 = compute_hausdorff_distance(*masks, include_background=True, percentile=95, spacing=lengths)
        nsd = compute_surface_dice(*masks, class_thresholds=[tolerance], include_background=True, spacing=lengths)
    return float(hd95), float(nsd)


def bounding_box(mask: np.ndarray) -> tuple[slice, ...]:
    """The smallest box around a mask's voxels, with a voxel around it where the array has one; all of an empty mask.

    mask: bool, of any shape.
    """
    from scipy import ndimage

    (box,) = ndimage.find_objects(mask.view(np.uint8), 1)
    if box is None:
        return (slice(None),) * mask.ndim
    return tuple(slice(max(side.start - 1, 0), side.stop + 1) for side in box)
