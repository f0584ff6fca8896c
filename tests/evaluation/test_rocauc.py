from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics import compute_roc_auc
from torch import Tensor

from hasten.evaluation.rocauc import ROCAUCMetric, VoxelROCAUC, auc_of


def by_pairs(score: list[float], label: list[int]) -> float:
    """The share of pairs of a positive and a negative that are in order, ties half."""
    wins = [
        (mine > other) + 0.5 * (mine == other)
        for mine, held in zip(score, label, strict=True)
        if held
        for other, held_too in zip(score, label, strict=True)
        if not held_too
    ]
    return sum(wins) / len(wins) if wins else float("nan")


def draw(seed: int, count: int, classes: int, levels: int) -> tuple[Tensor, Tensor]:
    """Scores of few levels, so that some tie, and labels."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.randint(0, levels, (count, classes), generator=generator) / levels
    return score, torch.randint(0, 2, (count, classes), generator=generator)


def monais(score: Tensor, label: Tensor, average: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(compute_roc_auc(score, label, average))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 999),
    count=st.integers(1, 40),
    classes=st.integers(1, 4),
    levels=st.sampled_from([2, 7, 10**6]),
    average=st.sampled_from(["macro", "weighted", "micro", "none"]),
)
def test_it_is_monais_and_the_definition(seed: int, count: int, classes: int, levels: int, average: str) -> None:
    score, label = draw(seed, count, classes, levels)
    metric = ROCAUCMetric(average)
    half = count // 2
    if half:
        metric(score[:half], label[:half])
    metric(list(score[half:]), list(label[half:]))
    result = np.asarray(metric.compute())
    assert result == pytest.approx(monais(score, label, average), abs=1e-6, nan_ok=True)
    each = auc_of(score, label).tolist()
    wanted = [by_pairs(score[:, place].tolist(), label[:, place].tolist()) for place in range(classes)]
    assert each == pytest.approx(wanted, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("label", [[0, 0, 0], [1, 1, 1], [0, 1, 2]])
def test_what_has_no_area_is_nan(label: list[int]) -> None:
    metric = ROCAUCMetric()
    metric(torch.tensor([0.1, 0.2, 0.3]), torch.tensor(label))
    assert np.isnan(metric.compute())


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 99),
    classes=st.integers(1, 3),
    bins=st.sampled_from([2, 16, 8192]),
    average=st.sampled_from(["macro", "weighted", "micro", "none"]),
)
def test_voxels_are_within_the_bound_of_the_exact_area(seed: int, classes: int, bins: int, average: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    sides = [(5, 4, 3), (2, 6, 5)]
    scores = [torch.randn(classes, *side, generator=generator).sigmoid() for side in sides]
    labels = [(score + torch.rand(score.shape, generator=generator) > 1.1).long() for score in scores]
    metric = VoxelROCAUC(average, bins)
    metric(scores[0][None], labels[0][None])
    metric(scores[1:], labels[1:])
    exact = ROCAUCMetric(average)
    for score, label in zip(scores, labels, strict=True):
        exact(score.flatten(1).t(), label.flatten(1).t())
    result, wanted, bound = (each.reshape(-1) for each in (metric.aggregate(), exact.aggregate(), metric.error_bound()))
    assert torch.all((result - wanted).abs() <= bound + 1e-9)
    if bins == 8192:
        assert torch.all(bound < 1e-2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ROCAUCMetric()(torch.zeros(1, 2, 4, 4), torch.zeros(1, 2, 4, 4)), ["VoxelROCAUC", "(1, 2, 4, 4)"]),
        (lambda: ROCAUCMetric()(torch.zeros(4, 2), torch.zeros(4, 3)), ["(4, 2)", "(4, 3)"]),
        (lambda: ROCAUCMetric("mean"), ["average", "'mean'", "macro"]),
        (lambda: VoxelROCAUC(bins=1), ["bins", "1"]),
        (lambda: VoxelROCAUC()(torch.zeros(1, 3, 4), torch.zeros(1, 2, 4)), ["(3, 4)", "(2, 4)"]),
        (lambda: VoxelROCAUC().aggregate(), ["no case"]),
    ],
)
def test_a_mistake_is_told(call: Any, words: list[str]) -> None:
    with pytest.raises(ValueError) as raised:
        call()
    assert all(word in str(raised.value) for word in words), raised.value
