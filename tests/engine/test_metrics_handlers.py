"""The handlers in ignite's engine and MONAI's evaluator, beside MONAI's own."""

from __future__ import annotations

from typing import Any

import monai.handlers
import numpy as np
import pytest
import torch
from ignite.engine import Engine
from ignite.metrics import Metric
from monai.engines import SupervisedEvaluator
from monai.handlers import IgniteMetricHandler, from_engine
from monai.networks import one_hot
from torch import Tensor, nn

from hasten.engine.metrics.handlers import (
    ROCAUC,
    ConfusionMatrix,
    HausdorffDistance,
    MeanDice,
    MeanIoU,
    SurfaceDice,
)
from hasten.engine.metrics.overlap import DiceMetric


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


def test_scores_have_an_area_in_both_forms() -> None:
    generator = torch.Generator().manual_seed(1)
    flat = [
        (torch.rand(20, 2, generator=generator), torch.randint(0, 2, (20, 2), generator=generator)) for _ in range(2)
    ]
    result, wanted = run(ROCAUC(), flat), run(monai.handlers.ROCAUC(), flat)
    assert result.state.metrics["metric"] == pytest.approx(wanted.state.metrics["metric"], abs=1e-6)
    voxels = [(score.t()[None], label.t()[None]) for score, label in flat]
    assert run(ROCAUC(bins=10**5), voxels).state.metrics["metric"] == pytest.approx(
        wanted.state.metrics["metric"], abs=1e-3
    )


def test_surface_dice_has_a_handler() -> None:
    assert 0 <= run(SurfaceDice([1.0, 1.0]), batches()).state.metrics["metric"] <= 1


def test_monais_evaluator_takes_it_as_key_metric() -> None:
    """Decollated cases with label maps, as its post-processing leaves them."""
    generator = torch.Generator().manual_seed(1)
    data = [
        {
            "image": torch.randn(2, 3, 6, 5, generator=generator),
            "label": torch.randint(0, 3, (2, 1, 6, 5), generator=generator),
        }
        for _ in range(2)
    ]

    def mapped(output: Any) -> Any:
        predicted, label = from_engine(["pred", "label"])(output)
        return [case.argmax(0, keepdim=True) for case in predicted], label

    evaluator = SupervisedEvaluator(
        device=torch.device("cpu"),
        val_data_loader=data,
        network=nn.Identity(),
        key_val_metric={"val_mean_dice": MeanDice(False, num_classes=3, output_transform=mapped)},
        additional_metrics={"val_mean_iou": MeanIoU(num_classes=3, output_transform=mapped)},
    )
    evaluator.run()
    wanted = monai.metrics.DiceMetric(include_background=False)
    for batch in data:
        wanted(one_hot(batch["image"].argmax(1, keepdim=True), 3), one_hot(batch["label"], 3))
    assert evaluator.state.metrics["val_mean_dice"] == pytest.approx(float(wanted.aggregate()), abs=1e-6)
    assert evaluator.state.best_metric == evaluator.state.metrics["val_mean_dice"]
    assert evaluator.state.metric_details["val_mean_dice"].shape == (4, 2)
    assert 0 < evaluator.state.metrics["val_mean_iou"] < 1
