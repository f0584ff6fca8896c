"""Detection of lesions: FROC, the share of lesions found against false positives per image, streamed.

Camelyon16's evaluation: a detection inside a lesion is a hit, and a lesion counts once, with its best detection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hasten.evaluation.streamed import gather_rows

RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives per image at which Camelyon16 and LUNA16 take the sensitivity."""
_FALSE, _LESION, _EXCLUDED, _IMAGE = range(4)
"""Kinds of rows: a false positive, a lesion (0 if it was missed), one that does not count, and an image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Froc:
    """The curve and its score."""

    score: float
    """Mean sensitivity at `rates`."""
    rates: tuple[float, ...]
    sensitivity: tuple[float, ...]
    """Sensitivity at each of `rates`, on the line between the points of the curve."""
    curve_rates: np.ndarray
    """(M,) false positives per image, falling."""
    curve_sensitivity: np.ndarray
    """(M,)."""
    lesions: int
    images: int


class FrocMetric:
    """`metric(scores, points, lesions)` for each image, then `aggregate()`, over all ranks.

    Keeps a number for each detection and each lesion, no image.
    """

    def __init__(self, rates: Sequence[float] = RATES) -> None:
        if not rates or min(rates) < 0:
            raise ValueError(f"rates: {tuple(rates)}; give numbers of false positives per image, 0 or more")
        self.rates = tuple(float(rate) for rate in rates)
        self._rows: list[torch.Tensor] = []

    def reset(self) -> None:
        self._rows = []

    def __call__(
        self, scores: np.ndarray, points: np.ndarray, lesions: np.ndarray, excluded: Sequence[int] = ()
    ) -> None:
        """Count one image.

        scores: (N,) of its detections; points: (N, 2) row and column, in pixels of `lesions`. lesions: (H, W) integers,
        0 outside, each lesion another number from 1 on without a gap. excluded: numbers of lesions that neither count
        as such nor make a detection in them a false positive. Scores are above 0.
        Raises ValueError for arrays that do not fit each other.
        """
        scores, points = np.asarray(scores, np.float64).reshape(-1), np.asarray(points)
        if points.size == 0:
            points = np.zeros((0, lesions.ndim), int)
        if points.shape != (len(scores), lesions.ndim):
            raise ValueError(
                f"scores, points: shapes {scores.shape} and {points.shape} do not fit; give a row of {lesions.ndim} "
                "numbers for each score"
            )
        at = np.floor(points).astype(int)
        if len(at) and ((at < 0).any() or (at >= lesions.shape).any()):
            raise ValueError(f"points: some lie outside the {lesions.shape} pixels of lesions; give them in its pixels")
        hit = lesions[tuple(at.T)]
        rows = [(_IMAGE, 0.0), *((_FALSE, score) for score in scores[hit == 0].tolist())]
        for number in range(1, int(lesions.max(initial=0)) + 1):
            if number in excluded:
                rows.append((_EXCLUDED, 0.0))
            else:
                rows.append((_LESION, float(scores[hit == number].max(initial=0.0))))
        self._rows.append(torch.tensor(rows, dtype=torch.float64))

    def aggregate(self) -> Froc:
        """Raises ValueError without an image, or without a lesion, as there is no sensitivity then."""
        rows = gather_rows(torch.cat(self._rows) if self._rows else None)
        if rows is None:
            raise ValueError("FrocMetric: no image was counted since reset(); call it on each image first")
        kind, score = rows.numpy().T
        images, lesions = int((kind == _IMAGE).sum()), int((kind == _LESION).sum())
        if lesions == 0:
            raise ValueError(f"FrocMetric: none of the {images} images has a lesion that counts; give some that have")
        hits = score[(kind == _LESION) | (kind == _EXCLUDED)]
        return froc_of(score[kind == _FALSE], hits, lesions, images, self.rates)


def froc_of(false: np.ndarray, hits: np.ndarray, lesions: int, images: int, rates: Sequence[float] = RATES) -> Froc:
    """The curve of all images together.

    false: (F,) scores of false positives; hits: (T,) best score of each lesion, 0 if it was missed or does not count;
    lesions: the number of those that count. At each score that occurs, what scores at least that much is a detection;
    the lowest number of all is left out, as Camelyon's program does, which is the 0 of a missed lesion or the loosest
    threshold. The curve begins at no detection; between its points sensitivity lies on a straight line, and stays
    beyond the last one.
    """
    thresholds = np.unique(np.concatenate([false, hits]))[1:][::-1]
    ordered_false, ordered_hits = np.sort(false), np.sort(hits)
    above_false = len(false) - np.searchsorted(ordered_false, thresholds, side="left")
    above_hits = len(hits) - np.searchsorted(ordered_hits, thresholds, side="left")
    x = np.concatenate([[0.0], above_false / images])
    y = np.concatenate([[0.0], above_hits / lesions])
    sensitivity = np.interp(rates, x, y)
    return Froc(
        score=float(sensitivity.mean()), rates=tuple(rates), sensitivity=tuple(sensitivity.tolist()),
        curve_rates=x[::-1], curve_sensitivity=y[::-1], lesions=lesions, images=images,
    )  # fmt: skip
