"""What the losses share: scores without space, and weights of another number of classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.nets.losses.modules import DiceCELoss, TverskyCELoss
from tests.nets.losses.test_modules import INDEX, OURS, agree, index_of, scores_of, several_of

OVERLAPS = [name for name in OURS if name != "FocalLoss"]


@pytest.mark.parametrize("name", OVERLAPS)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("options", [{}, {"include_background": False}, {"reduction": "sum"}], ids=str)
def test_scores_without_space_are_monais_over_the_batch(name: str, several: bool, options: dict[str, Any]) -> None:
    if name == "DiceFocalLoss" and "reduction" in options:
        pytest.skip("MONAI's focal loss of scores (B, K) takes the mean instead of the sum")
    scores = scores_of(3, 6, 4, [], 2.0)
    target, how = (several_of(3, 6, 4, []), {"sigmoid": True}) if several else (index_of(3, 6, 4, []), INDEX)
    agree(name, scores, target, batch=True, **how, **options)


@pytest.mark.parametrize("name", OVERLAPS)
def test_a_sample_without_space_has_no_overlap(name: str) -> None:
    for target, how in ((index_of(3, 6, 4, []), INDEX), (several_of(3, 6, 4, []), {"sigmoid": True})):
        with pytest.raises(ValueError, match=r"scores: shape \(6, 4\); .* batch=True"):
            OURS[name](**how)(scores_of(3, 6, 4, [], 2.0), target)


@pytest.mark.parametrize("weight", [[1.0, 2.0], [1.0, 2.0, 3.0, 4.0]], ids=len)
@pytest.mark.parametrize(
    "loss",
    [
        lambda **options: DiceCELoss(**INDEX, **options),
        lambda **options: DiceCELoss(**INDEX, squared_pred=True, **options),
        lambda **options: DiceCELoss(**INDEX, include_background=False, label_smoothing=0.1, **options),
        lambda **options: TverskyCELoss(**INDEX, **options),
    ],
    ids=["fused", "squared", "smoothed", "tversky"],
)
def test_a_weight_of_another_number_of_classes_is_told(loss: Any, weight: list[float]) -> None:
    with pytest.raises(ValueError, match=rf"weight: [{len(weight)}{len(weight) - 1}] for [23] classes that count"):
        loss(weight=weight)(torch.rand(2, 3, 5, 4), index_of(1, 2, 3, [5, 4]))


def test_a_weight_of_two_classes_of_which_one_counts_is_told() -> None:
    loss = DiceCELoss(**INDEX, include_background=False, squared_pred=True, weight=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="weight: 3 for 2 classes"):
        loss(torch.rand(2, 2, 5, 4), index_of(1, 2, 2, [5, 4]))
