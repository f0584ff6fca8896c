from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.evaluation.froc import RATES, Froc, FrocMetric

Image = tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]


def make_image(seed: int, *, lesions: bool = True) -> Image:
    """Scores, points, a label map of squares, and which of them do not count."""
    rng = np.random.default_rng(seed)
    labels = np.zeros((60, 60), np.int32)
    number = int(rng.integers(1, 6)) if lesions else 0
    for index in range(number):
        y, x = divmod(index, 3)
        labels[y * 25 + 3 : y * 25 + 15, x * 19 + 2 : x * 19 + 14] = index + 1
    count = int(rng.integers(0, 30))
    scores = rng.choice(np.linspace(0.5, 1, 12)[1:], count).astype(np.float32)  # with ties
    points = rng.integers(0, 60, (count, 2))
    excluded = [index for index in range(1, number + 1) if rng.random() < 0.2 and number > 1 and index > 1]
    return scores, points, labels, excluded


def of_monai(images: list[Image], rates: tuple[float, ...]) -> tuple[float, np.ndarray, np.ndarray]:
    from monai.metrics import compute_fp_tp_probs, compute_froc_curve_data, compute_froc_score

    false, result, targets = [], [], 0
    for scores, points, labels, excluded in images:
        fp, tp, number = compute_fp_tp_probs(scores, points[:, 0], points[:, 1], labels, excluded, 0)
        false.extend(fp)
        result.extend(tp)
        targets += number
    rate, sensitivity = compute_froc_curve_data(np.array(false), np.array(result), targets, len(images))
    return float(compute_froc_score(rate, sensitivity, rates)), rate, sensitivity


def slow(images: list[Image], rate: float) -> float:
    """The sensitivity at a rate, threshold by threshold, lesion by lesion."""
    rows = [(image, score, labels[tuple(point)]) for image, (scores, points, labels, _) in enumerate(images)
            for score, point in zip(scores.tolist(), points, strict=True)]  # fmt: skip
    counting = [(image, number) for image, (_, _, labels, excluded) in enumerate(images)
                for number in range(1, labels.max() + 1) if number not in excluded]  # fmt: skip
    every = [(image, number) for image, each in enumerate(images) for number in range(1, each[2].max() + 1)]
    best = {
        lesion: max((s for image, s, label in rows if (image, label) == lesion), default=0.0) for lesion in counting
    }
    numbers = {score for _, score, label in rows if label == 0} | set(best.values())
    numbers |= {0.0} if len(every) > len(counting) else set()
    curve = [(0.0, 0.0)]
    for threshold in sorted(numbers, reverse=True)[:-1]:
        false = sum(score >= threshold for _, score, label in rows if label == 0)
        curve.append((false / len(images), sum(value >= threshold for value in best.values()) / len(counting)))
    before = [point for point in curve if point[0] <= rate]
    after = [point for point in curve if point[0] > rate]
    (x0, y0), (x1, y1) = before[-1], after[0] if after else before[-1]
    return y0 if x1 == x0 else y0 + (y1 - y0) * (rate - x0) / (x1 - x0)


def measured(images: list[Image], rates: tuple[float, ...] = RATES) -> Froc:
    metric = FrocMetric(rates)
    for image in images:
        metric(*image)
    return metric.aggregate()


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_score_and_curve_are_those_of_monai(seed: int, number: int) -> None:
    images = [make_image(seed * 10 + index, lesions=index != 1) for index in range(number)]
    score, rate, sensitivity = of_monai(images, RATES)
    result = measured(images)
    np.testing.assert_allclose(result.curve_rates, rate)
    np.testing.assert_allclose(result.curve_sensitivity, sensitivity)
    assert result.score == pytest.approx(score, abs=1e-12)


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_each_sensitivity_is_that_of_the_definition(seed: int, number: int) -> None:
    images = [make_image(seed * 10 + index) for index in range(number)]
    result = measured(images)
    assert result.sensitivity == pytest.approx([slow(images, rate) for rate in RATES], abs=1e-12)
    assert result.images == number


@pytest.mark.parametrize(
    ("scores", "points", "message"),
    [([0.9, 0.8], [[0, 0]], "do not fit"), ([0.9], [[0, 4]], "some lie outside"), ([0.9], [[-1, 0]], "outside")],
    ids=["number", "beyond", "before"],
)
def test_detections_that_do_not_fit_are_refused(scores: list[float], points: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrocMetric()(np.array(scores), np.array(points), np.ones((4, 4), np.int32))
