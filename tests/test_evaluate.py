"""Streamed overlap metrics against MONAI's classes, call by call."""

from __future__ import annotations

import warnings
from typing import Any

import monai.metrics
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.data import MetaTensor
from monai.networks import one_hot
from torch import Tensor

from hasten.evaluation.counts import confusion_counts
from hasten.evaluation.overlap import REDUCTIONS, ConfusionMatrixMetric, DiceMetric, MeanIoU, reduce_values
from hasten.evaluation.surface import HausdorffDistanceMetric, SurfaceDiceMetric

NAMES = ["accuracy", "sensitivity", "specificity", "precision", "f1 score", "balanced accuracy", "fall out"]
Pair = tuple[Tensor, Tensor]


def maps(seed: int, count: int, classes: int, sides: list[int], predicted: int, labelled: int) -> Pair:
    """Class index (B, 1, ...) drawn from the first classes only: the others are absent."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(0, min(predicted, classes), (count, 1, *sides), generator=generator),
        torch.randint(0, min(labelled, classes), (count, 1, *sides), generator=generator),
    )


def hot(pair: Pair, classes: int) -> Pair:
    return one_hot(pair[0], classes), one_hot(pair[1], classes)


def quiet(metric: Any, *given: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return metric(*given, **options)


def same(result: Any, wanted: Any) -> None:
    # MONAI's means over everything have one axis of length 1.
    assert result.shape == wanted.shape or (result.ndim == 0 and wanted.shape == (1,))
    wanted = wanted.reshape(result.shape)
    assert torch.allclose(result.double(), wanted.double(), rtol=1e-6, atol=1e-6, equal_nan=True)


batches = st.lists(
    st.tuples(st.integers(0, 999), st.integers(1, 3), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=3
)
shapes = {
    "batches": batches,
    "classes": st.integers(2, 5),
    "sides": st.lists(st.integers(1, 5), min_size=2, max_size=3),
    "include": st.booleans(),
    "reduction": st.sampled_from(REDUCTIONS),
}


@settings(max_examples=30, deadline=None)
@given(ignore_empty=st.booleans(), **shapes)
def test_dice_and_iou_are_monais(
    batches: list, classes: int, sides: list[int], include: bool, reduction: str, ignore_empty: bool
) -> None:
    options = {"include_background": include, "reduction": reduction, "ignore_empty": ignore_empty}
    for ours, theirs in [
        (DiceMetric(get_not_nans=True, **options), monai.metrics.DiceMetric(get_not_nans=True, **options)),
        (MeanIoU(get_not_nans=True, **options), monai.metrics.MeanIoU(get_not_nans=True, **options)),
    ]:
        for seed, count, predicted, labelled in batches:
            pair = hot(maps(seed, count, classes, sides, predicted, labelled), classes)
            same(ours(*pair), theirs(*pair))
        same(ours.get_buffer(), theirs.get_buffer())
        for result, wanted in zip(ours.aggregate(), theirs.aggregate(), strict=True):
            same(result, wanted)


@settings(max_examples=30, deadline=None)
@given(sample=st.booleans(), **shapes)
def test_the_confusion_matrix_metrics_are_monais(
    batches: list, classes: int, sides: list[int], include: bool, reduction: str, sample: bool
) -> None:
    options = {"include_background": include, "reduction": reduction, "compute_sample": sample, "metric_name": NAMES}
    ours, theirs = ConfusionMatrixMetric(**options), monai.metrics.ConfusionMatrixMetric(**options)
    for seed, count, predicted, labelled in batches:
        pair = hot(maps(seed, count, classes, sides, predicted, labelled), classes)
        same(ours(*pair), theirs(*pair))
    for result, wanted in zip(ours.aggregate(), theirs.aggregate(), strict=True):
        same(result, wanted)


def test_more_voxels_than_float32_can_count() -> None:
    size = 2**24 + 3
    predicted = torch.ones(1, 1, size, dtype=torch.uint8)
    labelled = predicted.clone()
    labelled[..., 0] = 0
    assert confusion_counts(predicted, labelled).tolist() == [[[size - 1, 1, 0, 0]]]
    assert confusion_counts(predicted.bool(), labelled.bool(), 2)[0, 1].tolist() == [size - 1, 1, 0, 0]


def test_cases_of_several_sizes_label_maps_and_monais_tensors() -> None:
    pairs = [maps(seed, 1, 3, [4, 3 + seed, 2], 3, 2 + seed % 2) for seed in range(3)]
    theirs = monai.metrics.DiceMetric(include_background=False)
    listed = [hot(pair, 3) for pair in pairs]
    theirs([pair[0][0] for pair in listed], [pair[1][0] for pair in listed])
    by_maps, by_lists, mixed = (DiceMetric(include_background=False, num_classes=3) for _ in range(3))
    for pair in pairs:
        by_maps(*pair)
    by_lists([MetaTensor(pair[0][0]) for pair in listed], [MetaTensor(pair[1][0]) for pair in listed])
    mixed([pair[0][0] for pair in pairs], [pair[1][0] for pair in listed])
    for ours in (by_maps, by_lists, mixed):
        same(ours.aggregate(), theirs.aggregate())
        assert type(ours.aggregate()) is Tensor
        same(ours.get_buffer(), theirs.get_buffer())
    assert by_maps.compute() == pytest.approx(float(theirs.aggregate()), abs=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_order_of_the_cases_changes_no_bit(reduction: str) -> None:
    generator = torch.Generator().manual_seed(1)
    values = torch.rand(101, 4, generator=generator, dtype=torch.float64)
    values[values < 0.1] = torch.nan
    order = torch.randperm(101, generator=generator)
    result, other = reduce_values(values, reduction)[0], reduce_values(values[order], reduction)[0]
    if reduction in ("none", "mean_channel", "sum_channel"):
        result = result[order]
    assert torch.equal(result.nan_to_num(2), other.nan_to_num(2))


@pytest.mark.parametrize("percentile", [None, 95])
def test_surfaces_are_monais(percentile: float | None) -> None:
    pairs = [maps(seed, 1, 3, [6, 5, 4], 3, 2 + seed) for seed in range(2)]
    spacing = (2.0, 1.0, 0.5)
    for ours, theirs in [
        (
            HausdorffDistanceMetric(percentile=percentile, num_classes=3),
            monai.metrics.HausdorffDistanceMetric(percentile=percentile),
        ),
        (SurfaceDiceMetric([1.0, 2.0], num_classes=3), monai.metrics.SurfaceDiceMetric([1.0, 2.0])),
    ]:
        for pair in pairs:
            result = quiet(ours, *pair, spacing=spacing)
            same(result, quiet(theirs, *hot(pair, 3), spacing=spacing))
        assert torch.allclose(ours.aggregate(), theirs.aggregate().double(), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: DiceMetric(reduction="all"), ["reduction", "'all'", "mean_batch"]),
        (lambda: ConfusionMatrixMetric(metric_name="speed"), ["metric_name", "'speed'", "sensitivity"]),
        (lambda: DiceMetric()(torch.zeros(1, 3, 4), torch.zeros(1, 3, 5)), ["(1, 3, 4)", "(1, 3, 5)"]),
        (lambda: DiceMetric()(torch.zeros(1, 1, 4), torch.zeros(1, 3, 4)), ["(1, 3, 4)", "num_classes"]),
        (lambda: DiceMetric()([], []), ["empty"]),
    ],
)
def test_a_mistake_is_told(call: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        call()
    assert all(word in str(raised.value) for word in words), raised.value
