"""The handlers in ignite's engine and MONAI's evaluator, beside MONAI's own."""

from __future__ import annotations

from typing import Any

import monai.handlers
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from ignite.metrics import Metric
from monai.handlers import IgniteMetricHandler
from monai.networks import one_hot
from torch import Tensor

from hasten.evaluation.overlap import DiceMetric
from hasten.monai.metric_handlers import (
    ConfusionMatrix,
    HausdorffDistance,
    MeanDice,
    MeanIoU,
)


def batches() -> list[tuple[Tensor, Tensor]]:
    """Two batches of one-hot (2, 3, 6, 5) predictions and labels; the second labels lack class 2."""
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(one_hot(torch.randint(0, high, (2, 1, 6, 5), generator=generator), 3) for high in highest)  # type: ignore[misc]
        for highest in [(3, 3), (3, 2)]
    ]


def run(metric: Metric, data: Any) -> Engine:
    engine = Engine(lambda _, batch: batch)
    metric.attach(engine, "metric")
    engine.run(data)
    engine.run(data)  # an epoch starts afresh
    return engine


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (MeanDice(), monai.handlers.MeanDice()),
        (MeanDice(False, "mean_batch"), monai.handlers.MeanDice(False, "mean_batch")),
        (IgniteMetricHandler(DiceMetric(False)), monai.handlers.MeanDice(False)),
        (MeanIoU(include_background=False), monai.handlers.MeanIoUHandler(include_background=False)),
        (
            ConfusionMatrix(metric_name="sensitivity", compute_sample=True),
            monai.handlers.ConfusionMatrix(metric_name="sensitivity", compute_sample=True),
        ),
        (HausdorffDistance(percentile=95), monai.handlers.HausdorffDistance(percentile=95)),
    ],
)
def test_the_engine_gets_what_monais_handler_gives(ours: Metric, theirs: Metric) -> None:
    result, wanted = run(ours, batches()), run(theirs, batches())
    assert np.asarray(result.state.metrics["metric"]) == pytest.approx(
        np.asarray(wanted.state.metrics["metric"]), abs=1e-6
    )
    details = [torch.as_tensor(each.state.metric_details["metric"]).double() for each in (result, wanted)]
    assert torch.allclose(*details, rtol=1e-6, equal_nan=True)
