"""Metrics on the card: the host's counts, and no wait for a value until they are asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.evaluation.overlap import ConfusionMatrixMetric, DiceMetric, MeanIoU
from hasten.evaluation.rocauc import ROCAUCMetric, VoxelROCAUC


def made() -> list[Any]:
    return [
        DiceMetric(num_classes=4),
        MeanIoU(False, "mean_batch", num_classes=4),
        ConfusionMatrixMetric(metric_name="precision", num_classes=4),
        VoxelROCAUC("none"),
        ROCAUCMetric("none"),
    ]


def update(metric: Any, score: Tensor, label: Tensor) -> None:
    if isinstance(metric, ROCAUCMetric):
        metric(score[:, :, 0, 0, 0], (label[:, :, 0, 0, 0] > 1).expand(-1, 4))
    elif isinstance(metric, VoxelROCAUC):
        metric(score, label)
    else:
        metric(score.argmax(1, keepdim=True).to(torch.uint8), label)


def test_the_card_finds_what_the_host_does_and_waits_for_nothing() -> None:
    generator = torch.Generator().manual_seed(1)
    score = torch.randn(8, 4, 24, 20, 16, generator=generator).softmax(1)
    label = torch.randint(0, 4, (8, 1, 24, 20, 16), generator=generator).to(torch.uint8)
    there = score.cuda(), label.cuda()
    for host, card in zip(made(), made(), strict=True):
        update(host, score, label)
        update(card, *there)
        card.reset()
        torch.cuda.set_sync_debug_mode("error")
        try:
            update(card, *there)
            # MONAI's arithmetic, which this one is made of, copies a constant from the host.
            if not isinstance(card, ConfusionMatrixMetric):
                card.aggregate()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        result, wanted = (each[0] if isinstance(each, list) else each for each in (card.aggregate(), host.aggregate()))
        assert result.is_cuda
        assert torch.allclose(result.cpu(), wanted, rtol=1e-9)
