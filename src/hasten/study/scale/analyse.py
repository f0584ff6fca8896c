"""The analysis of a folder of scaling logs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.study.scale.log import Log
from hasten.study.scale.log_folder import read_logs
from hasten.study.scale.notes import notes_of
from hasten.study.scale.series import Point, Series, chosen_epoch, series_of
from hasten.study.scale.verdict import verdicts

DROP = 0.05
"""Default fall of the metric from which it is reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """The results of a scaling study."""

    name: str
    """Name of the folder."""
    baseline: int
    epoch: int | None
    """The 0-based epoch that is compared; None is the median of all but the first."""
    target: float | None
    drop: float
    metric: str
    series: tuple[Series, ...]
    verdicts: tuple[str, ...]
    warnings: tuple[str, ...]
    """Reasons to doubt the figures."""
    notes: tuple[str, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """Points of all strategies, one after another."""
        return tuple(point for one in self.series for point in one.points)

    @property
    def logs(self) -> tuple[Log, ...]:
        """Each once."""
        return tuple({log.source: log for one in self.series for log in one.logs}.values())

    @property
    def epoch_words(self) -> str:
        return "median epoch" if self.epoch is None else f"epoch {self.epoch}"


def analyse(
    folder: Path,
    *,
    baseline: int = 1,
    epoch: int | None = None,
    median: bool = False,
    drop: float = DROP,
    target: float | None = None,
) -> Analysis:
    """Read the logs in `folder` and compare them.

    baseline: workers that speed-up is measured against. epoch: the 0-based epoch whose time is compared; without it 4
    in logs by others with that epoch, else, and with `median`, the median of all but the first. drop: fall of the
    metric that is reported. target: metric whose time is compared; without it the highest that every run reached.
    Raises ValueError for what `read_logs` refuses, no run on `baseline` workers, and an epoch that isn't everywhere.
    """
    study = read_logs(folder)
    if target is None:
        target = reached_by_all(study.logs)
    compared = None if median else chosen_epoch(study.logs, epoch, folder)
    series = series_of(study.logs, baseline=baseline, epoch=compared, target=target, folder=folder)
    metric = study.logs[0].metric_name
    doubts, notes = notes_of(series)
    return Analysis(
        name=folder.resolve().name,
        baseline=baseline,
        epoch=compared,
        target=target,
        drop=drop,
        metric=metric,
        series=series,
        verdicts=verdicts(series, drop=drop, metric=metric),
        warnings=tuple(doubts),
        notes=(*study.notes, *notes),
    )


def reached_by_all(logs: Sequence[Log]) -> float | None:
    """The highest metric, in hundredths, that a validation of every log reached; None if some had no validation."""
    if not all(log.scores for log in logs):
        return None
    level = math.floor(100 * min(max(metric for _, metric in log.scores) for log in logs) + 1e-9) / 100
    return level if level > 0 else None
