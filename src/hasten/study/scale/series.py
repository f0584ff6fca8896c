"""Combines logs: times, speed-up and quality over the seeds for each strategy and number of workers."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.config.patterns import first_few
from hasten.observe.cpu_load import BUSY
from hasten.observe.values import integer, number
from hasten.study.scale.log import Log
from hasten.study.scale.run_logs import SINGLE

DEFAULT_EPOCH = 4
"""Epoch to compare in logs of other trainings: that of the study that introduced their format."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Median and range of a figure over the runs."""

    median: float
    low: float
    high: float
    values: tuple[float, ...]
    """Value of each run, by seed."""

    def seconds(self) -> str:
        """The value as a time, with the range of several runs."""
        return self._text(".1f" if self.median >= 10 else ".3g", " s")

    def score(self) -> str:
        """The value as a score, with the range of several runs."""
        return self._text(".3f", "")

    def _text(self, digits: str, unit: str) -> str:
        limits = f" ({self.low:{digits}} to {self.high:{digits}})" if len(self.values) > 1 else ""
        return f"{self.median:{digits}}{unit}{limits}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One strategy on one count of workers; what isn't known is None."""

    strategy: str
    world: int
    seeds: tuple[int, ...]
    ideal: float
    """Workers over those of the baseline."""
    epoch_s: Spread | None
    speedup: float | None
    """Speed-up of an epoch: the baseline's median over this one's. None where `doubt` says why it is not quoted."""
    efficiency: float | None
    total_s: Spread | None
    total_speedup: float | None
    samples_per_s: float | None
    target_s: float | None
    """Median seconds to the target, if every run reached it."""
    reached: int | None
    """Runs that reached the target; None without one, or without validations."""
    metric: Spread | None
    fall: float | None
    """The baseline's median metric less this one's."""
    doubt: str
    """Why no speed-up is quoted: it is above the ideal, or the processors were not these workers' alone; or ""."""
    measured_ratio: float | None
    """What was measured then: the baseline's median epoch over this one's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """All points of one strategy, the fewest workers first; the first is the baseline."""

    strategy: str
    points: tuple[Point, ...]
    logs: tuple[Log, ...]
    """Logs of all points, the baseline's too."""

    @property
    def base(self) -> Point:
        return self.points[0]


def chosen_epoch(logs: Sequence[Log], requested: int | None, folder: Path) -> int | None:
    """The epoch to compare: the requested one, else 4 if all are logs by others with epoch 4, else None (the median).

    Raises ValueError if the requested epoch isn't in every log.
    """
    epoch = DEFAULT_EPOCH if requested is None else requested
    missing = [log for log in logs if epoch not in log.epochs]
    if requested is None:
        return None if missing or any(log.machine is not None for log in logs) else epoch
    if missing:
        shortest = min(missing, key=lambda log: len(log.epochs))
        there = f"{min(shortest.epochs)} to {max(shortest.epochs)}" if shortest.epochs else "none"
        raise ValueError(
            f"--epoch {epoch}: not in {first_few([log.source for log in missing])} of {folder} ({shortest.source} has "
            f"{there}, counted from 0); name one that all have, or `median`"
        )
    return epoch


def series_of(
    logs: Sequence[Log], *, baseline: int, epoch: int | None, target: float | None, folder: Path
) -> tuple[Series, ...]:
    """A series for each strategy against its own runs on `baseline` workers, the one with the best speed-up first.

    A run of Hasten on one worker is the same in any strategy, so the strategies share it. Runs with fewer workers than
    the baseline are left out. Raises ValueError if a strategy has no run on `baseline` workers.
    """
    by_strategy: dict[str, list[Log]] = {}
    for log in logs:
        by_strategy.setdefault(log.strategy, []).append(log)
    alone = by_strategy.pop(SINGLE, []) if len(by_strategy) > 1 else []
    for strategy_logs in by_strategy.values():
        if not any(log.world == 1 for log in strategy_logs):
            strategy_logs[:0] = alone
    _require_baseline(by_strategy, baseline, folder)
    all_series = [
        _series(strategy, [log for log in strategy_logs if log.world >= baseline], baseline, epoch, target)
        for strategy, strategy_logs in by_strategy.items()
    ]
    return tuple(sorted(all_series, key=lambda one: -max(point.speedup or 0.0 for point in one.points)))


def _require_baseline(by_strategy: dict[str, list[Log]], baseline: int, folder: Path) -> None:
    worlds = {strategy: sorted({log.world for log in logs}) for strategy, logs in by_strategy.items()}
    missing = [strategy for strategy, counts in worlds.items() if baseline not in counts]
    if not missing:
        return
    available = "; ".join(f"{strategy}: {', '.join(map(str, counts))}" for strategy, counts in worlds.items())
    common = set.intersection(*(set(counts) for counts in worlds.values()))
    remedy = f"use --baseline {min(common)}" if common else "train the strategies on one count that all have"
    raise ValueError(
        f"{folder}: no log of {' and '.join(missing)} with {workers(baseline)}, which speed-up is measured against "
        f"(workers there: {available}); add that run, or {remedy}"
    )


def _series(strategy: str, logs: list[Log], baseline: int, epoch: int | None, target: float | None) -> Series:
    by_world: dict[int, list[Log]] = {}
    for log in logs:
        by_world.setdefault(log.world, []).append(log)
    base = by_world[baseline]
    points = [_point(strategy, world_logs, base, epoch, target) for _, world_logs in sorted(by_world.items())]
    return Series(strategy=strategy, points=tuple(points), logs=tuple(sorted(logs, key=lambda log: log.world)))


def _point(strategy: str, logs: list[Log], base: list[Log], epoch: int | None, target: float | None) -> Point:
    epoch_s, first_epoch_s = (_spread([log.epoch_s(epoch) for log in group]) for group in (logs, base))
    total_s, first_total_s = (_spread([log.total_s for log in group]) for group in (logs, base))
    metric, first_metric = (_spread([log.metric for log in group]) for group in (logs, base))
    ideal = logs[0].world / base[0].world
    ratio, total_ratio = _ratio(first_epoch_s, epoch_s), _ratio(first_total_s, total_s)
    doubt = "" if logs is base else _doubt([*base, *logs], ratio, ideal)
    speedup = None if doubt else ratio
    times = [log.time_to(target) for log in logs] if target is not None and any(log.scores for log in logs) else None
    there = [time for time in times or [] if time is not None]
    cases = logs[0].cases
    return Point(
        strategy=strategy,
        world=logs[0].world,
        seeds=tuple(log.seed for log in logs),
        ideal=ideal,
        epoch_s=epoch_s,
        speedup=speedup,
        efficiency=None if speedup is None else speedup / ideal,
        total_s=total_s,
        total_speedup=None if doubt or total_ratio is None or round(total_ratio, 2) > ideal else total_ratio,
        samples_per_s=cases / epoch_s.median if cases and epoch_s else None,
        target_s=statistics.median(there) if len(there) == len(logs) else None,
        reached=None if times is None else len(there),
        metric=metric,
        fall=None if metric is None or first_metric is None else first_metric.median - metric.median,
        doubt=doubt,
        measured_ratio=ratio if doubt else None,
    )


def _doubt(logs: Sequence[Log], ratio: float | None, ideal: float) -> str:
    """Why a ratio of times of these runs is no speed-up; "" if it may be one."""
    others = max(number((log.machine or {}).get("others_cores")) or 0.0 for log in logs)
    if others > BUSY:
        return f"other programs used up to {others:.2g} cores meanwhile"
    crowded = [log.world for log in logs if log.world > (cpu_cores(log) or log.world)]
    if crowded:
        return f"{workers(max(crowded))} took turns on fewer cores"
    if ratio is not None and round(ratio, 2) > ideal:
        return "more than the ideal can't come from workers alone: something else differed between the runs"
    return ""


def cpu_cores(log: Log) -> int | None:
    """Cores of the machine of a run on a CPU; None of other runs, and where nobody knows."""
    facts = log.machine or {}
    return None if facts.get("gpus") else integer(facts.get("cores"))


def _spread(values: Sequence[float | None]) -> Spread | None:
    """Spread over runs that all have the figure; None if one doesn't."""
    numbers = tuple(value for value in values if value is not None)
    if not numbers or len(numbers) < len(values):
        return None
    return Spread(median=statistics.median(numbers), low=min(numbers), high=max(numbers), values=numbers)


def _ratio(base: Spread | None, other: Spread | None) -> float | None:
    return base.median / other.median if base is not None and other is not None else None


def workers(count: int) -> str:
    """`1 worker`, `4 workers`."""
    return f"{count} worker{'' if count == 1 else 's'}"
