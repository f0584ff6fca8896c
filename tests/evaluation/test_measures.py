from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from monai.metrics import compute_dice, compute_hausdorff_distance, compute_iou, compute_surface_dice

from hasten.evaluation.evaluate import score_case, surface_scores

Spacing = tuple[float, float, float]
MEMBERS = {"a": (1,), "b": (2,), "both": (1, 2)}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Spacing]:
    """Two label maps of 0, 1 and 2 with blobs, and a spacing; 2-D ones have D = 1."""
    shape = (draw(st.integers(1, 6)), draw(st.integers(3, 7)), draw(st.integers(3, 7)))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    density = draw(st.sampled_from((0.0, 0.05, 0.4, 0.9)))
    maps = [np.where(rng.random(shape) < density, rng.integers(1, 3, shape), 0).astype(np.uint8) for _ in range(2)]
    spacing = draw(st.tuples(*[st.sampled_from((0.5, 1.0, 1.7, 3.0))] * 3))
    return maps[0], maps[1], spacing


@given(pairs())
def test_scores_are_those_of_monai(case: tuple[np.ndarray, np.ndarray, Spacing]) -> None:
    prediction, label, spacing = case
    for score in score_case("c", prediction, label, MEMBERS, spacing=spacing, tolerance=1.5):
        masks = [torch.from_numpy(np.isin(each, MEMBERS[score.name]))[None, None] for each in (prediction, label)]
        if score.labelled + score.predicted == 0:
            assert all(math.isnan(value) for value in (score.dice, score.iou, score.hd95, score.nsd))
            continue
        lengths = spacing if len(label) > 1 else spacing[1:]
        flat = masks if len(label) > 1 else [mask[:, :, 0] for mask in masks]
        dice = compute_dice(*flat, include_background=True, ignore_empty=False)
        iou = compute_iou(*flat, include_background=True, ignore_empty=False)
        hd95 = compute_hausdorff_distance(*flat, include_background=True, percentile=95, spacing=lengths)
        nsd = compute_surface_dice(*flat, class_thresholds=[1.5], include_background=True, spacing=lengths)
        assert score.dice == pytest.approx(float(dice))
        assert score.iou == pytest.approx(float(iou))
        assert score.nsd == pytest.approx(float(nsd))
        if score.labelled and score.predicted:
            assert score.hd95 == pytest.approx(float(hd95))
        else:  # MONAI's is nan or infinite, by which of the two is empty
            assert not math.isfinite(float(hd95))
            assert score.hd95 == math.inf


@pytest.mark.parametrize("across", [1, 2])
def test_a_slice_is_measured_in_its_plane_across_whichever_axis(across: int) -> None:
    masks = [np.zeros((1, 12, 9), bool) for _ in range(2)]
    masks[0][0, 2:8, 3:6] = masks[1][0, 3:9, 3:7] = True
    turned = [np.moveaxis(mask, 0, across) for mask in masks]
    sides = [2.0, 0.5]
    sides.insert(across, 7.0)
    expected = surface_scores(*masks, spacing=(7.0, 2.0, 0.5), tolerance=1.5)
    assert surface_scores(*turned, spacing=(sides[0], sides[1], sides[2]), tolerance=1.5) == expected
