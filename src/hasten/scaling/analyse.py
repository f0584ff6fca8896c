"""The analysis of a scaling study: times, speed-up and quality over the seeds, conclusions, and reasons for doubt."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from hasten.config.patterns import first_few
from hasten.observe.cpu_load import BUSY
from hasten.observe.values import integer, number
from hasten.report.words import reached_by_all, share
from hasten.scaling.logs import MEASURED, SINGLE, Log, read_logs

DROP = 0.05
"""Default fall of the metric from which it is reported."""
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
        return self.text(".1f" if self.median >= 10 else ".3g", " s")

    def text(self, digits: str, unit: str = "") -> str:
        """The value in that format, with the range of several runs."""
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


Epoch = int | Literal["median"] | None
"""0-based; None is 4 in logs by others that all have it, else the median of all but the first."""


def chosen_epoch(logs: Sequence[Log], requested: Epoch, folder: Path) -> int | None:
    """The epoch to compare; None is the median. Raises ValueError if the requested epoch isn't in every log."""
    if requested == "median":
        return None
    epoch = DEFAULT_EPOCH if requested is None else requested
    missing = [log for log in logs if epoch not in log.epochs]
    if requested is None:
        return None if missing or any(log.machine for log in logs) else epoch
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
    all_series = []
    for strategy, strategy_logs in by_strategy.items():
        ordered = sorted((log for log in strategy_logs if log.world >= baseline), key=lambda log: log.world)
        by_world = {world: list(each) for world, each in groupby(ordered, key=lambda log: log.world)}
        points = [_point(strategy, world, by_world[baseline], epoch, target) for world in by_world.values()]
        all_series.append(Series(strategy=strategy, points=tuple(points), logs=tuple(ordered)))
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
    others = max(number(log.machine.get("others_cores")) or 0.0 for log in logs)
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
    return None if log.machine.get("gpus") else integer(log.machine.get("cores"))


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


LEAST_EFFICIENCY = 0.8
_EQUAL = 0.03
"""Share of an epoch's time below which a difference is ignored."""
_SEEDS = 3
"""Seeds on both counts from which a fall of the metric can be told from noise: by chance alone, all runs of one lie
below all of the other in 1 of 20 cases."""


def _winner(series: Sequence[Series]) -> list[str]:
    """The strategy with the shortest epochs on the most workers that several of them were tried on, or on the most."""
    by_world: dict[int, list[tuple[Point, Spread]]] = {}
    for one in series:
        for point in one.points[1:]:
            if point.speedup is not None and point.epoch_s is not None:
                by_world.setdefault(point.world, []).append((point, point.epoch_s))
    if not by_world:
        return []
    world = max([world for world, points in by_world.items() if len(points) > 1] or by_world)
    (best, ours), *others = sorted(by_world[world], key=lambda pair: pair[1].median)
    if not others:
        total = f" (total time {best.total_speedup:.2f}x)" if best.total_speedup is not None else ""
        return [f"{best.strategy} on {workers(world)} is {best.speedup:.2f}x as fast, of {best.ideal:g}x{total}."]
    second, theirs = others[0]
    is_clear = ours.high < theirs.low and theirs.median > (1 + _EQUAL) * ours.median
    told = (
        f"{best.strategy} wins" if is_clear else f"No winner can be told between {best.strategy} and {second.strategy}"
    )
    once = " (one run each)" if len(best.seeds) == len(second.seeds) == 1 else ""
    totals = (best.total_speedup, second.total_speedup)
    total = "" if None in totals else f" (total time {totals[0]:.2f}x against {totals[1]:.2f}x)"
    return [
        f"{told}{once}: at {workers(world)} an epoch takes {ours.seconds()} against {theirs.seconds()} of "
        f"{second.strategy}, a speed-up of {best.speedup:.2f}x against {second.speedup:.2f}x{total}."
    ]


def _unquoted(series: Sequence[Series]) -> list[str]:
    """What was measured where it is not quoted as a speed-up, and why."""
    return [
        f"{point.strategy} on {workers(point.world)}: no speed-up is quoted, as {point.doubt}. Measured: an epoch of "
        f"{point.epoch_s.seconds()} against {one.base.epoch_s.seconds()}, a ratio of {point.measured_ratio:.2f} where "
        f"{point.ideal:g} is ideal."
        for one in series
        for point in one.points[1:]
        if point.measured_ratio is not None and point.epoch_s is not None and one.base.epoch_s is not None
    ]


def _efficiencies(series: Sequence[Series]) -> list[str]:
    sentences = []
    for one in series:
        measured = [(point.world, point.efficiency) for point in one.points[1:] if point.efficiency is not None]
        if not measured:
            continue
        under = [world for world, efficiency in measured if efficiency < LEAST_EFFICIENCY]
        where = f"is under 80 % at {join_words(under)} workers" if under else "stays above 80 %"
        world, last = measured[-1]
        sentences.append(f"{one.strategy}: efficiency {where}; {share(last)} at {workers(world)}.")
    return sentences


def _falls(series: Sequence[Series], drop: float, metric: str) -> list[str]:
    """Falls of one strategy that mean the same are reported together."""
    base = workers(series[0].base.world)
    groups: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in series:
        for point in one.points[1:]:
            if point.fall is not None and point.fall > drop:
                groups.setdefault((one.strategy, _meaning(point, one.base)), []).append((point.world, point.fall))
    if groups:
        return [
            f"{strategy}: {metric} falls by {join_words([f'{fall:.3f}' for _, fall in falls])} at "
            f"{join_words([world for world, _ in falls])} workers against {base}; {meaning}."
            for (strategy, meaning), falls in groups.items()
        ]
    known = any(point.fall is not None for one in series for point in one.points[1:])
    return [f"{metric} is nowhere more than {drop:g} below {base}."] if known else []


def _meaning(point: Point, base: Point) -> str:
    """Whether the seeds tell a fall of the metric from noise."""
    assert point.metric is not None
    assert base.metric is not None
    seeds = min(len(point.seeds), len(base.seeds))
    if seeds == 1:
        return "one seed: can't be separated from noise"
    if seeds < _SEEDS:
        return f"{seeds} seeds are too few to separate that from noise ({_SEEDS} on both counts can)"
    return "beyond the seeds' noise" if point.metric.high < base.metric.low else "within the seeds' noise"


def join_words(values: Sequence[object]) -> str:
    """`4`, `4 and 8`, `4, 8 and 16`."""
    texts = [str(value) for value in values]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


_MODES = {
    "weak": "Weak scaling: each worker has the batch of a single one, so the global batch and the learning rate grow "
    "with the workers, and an epoch has fewer steps.",
    "strong": "Strong scaling: the global batch is the same on every count of workers, which share it.",
}


def _notes(logs: Sequence[Log]) -> tuple[list[str], list[str]]:
    """Sentences with reasons to doubt the figures, and sentences with other notes."""
    doubts = []
    on_cpu = [log for log in logs if log.machine and not log.machine.get("gpus")]
    if any(log.world > 1 for log in on_cpu):
        cores = max(cpu_cores(log) or 0 for log in on_cpu)
        doubts.append(
            f"All workers shared one machine of {cores} cores, and its memory bandwidth and caches, which more "
            "processes don't make more of."
        )
    # Settings that runs chose by measuring, and devices.
    for name in (*MEASURED, "device"):
        values = sorted({str(log.machine.get(name)) for log in logs if log.machine})
        if len(values) > 1:
            doubts.append(f"{name} was not the same in all runs ({', '.join(values)}), which changes their speed.")
    modes = sorted({log.mode for log in logs if log.mode and log.world > 1})
    if len(modes) > 1:
        doubts.append(f"{' and '.join(modes)} scaling are mixed here; study each in its own folder.")
    return doubts, [_MODES[modes[0]]] if len(modes) == 1 else []


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
    """The fastest strategy, where more workers stop paying, and where quality falls by more than `drop`; a sentence
    each."""
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


def analyse(
    folder: Path,
    *,
    baseline: int = 1,
    epoch: Epoch = None,
    drop: float = DROP,
    target: float | None = None,
) -> Analysis:
    """Read the logs in `folder` and compare them.

    baseline: workers that speed-up is measured against. epoch: whose time is compared. drop: fall of the metric that is
    reported. target: metric whose time is compared; without it the highest that every run reached.
    Raises ValueError for what `read_logs` refuses, no run on `baseline` workers, and an epoch that isn't everywhere.
    """
    logs, remarks = read_logs(folder)
    if target is None and all(log.scores for log in logs):
        target = reached_by_all(log.scores for log in logs) or None
    compared = chosen_epoch(logs, epoch, folder)
    series = series_of(logs, baseline=baseline, epoch=compared, target=target, folder=folder)
    metric = logs[0].metric_name
    doubts, notes = _notes(logs)
    return Analysis(
        name=folder.resolve().name,
        baseline=baseline,
        epoch=compared,
        target=target,
        drop=drop,
        metric=metric,
        series=series,
        verdicts=(*_winner(series), *_unquoted(series), *_efficiencies(series), *_falls(series, drop, metric)),
        warnings=tuple(doubts),
        notes=(*remarks, *notes),
    )
