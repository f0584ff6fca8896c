"""The conclusions of a scaling study in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.stats import PermutationMethod, mannwhitneyu

from hasten.report.words import share
from hasten.study.scale.series import Point, Series, Spread, workers

LEAST_EFFICIENCY = 0.8
BEYOND = 0.05
"""Largest probability by chance at which a difference counts as more than noise."""
_DEALS = 20_000
"""Permutations up to which the test is exact."""
_EQUAL = 0.03
"""Share below which a difference in time is ignored when single runs are compared."""


def verdicts(series: Sequence[Series], *, drop: float, metric: str) -> tuple[str, ...]:
    """Sentences: the fastest strategy, where more workers stop paying, and where quality falls by more than `drop`."""
    return tuple(
        filter(None, [_winner(series), *_unquoted(series), *_efficiencies(series), *_falls(series, drop, metric)])
    )


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


def _winner(series: Sequence[Series]) -> str:
    """The strategy with the shortest epochs on the most workers that several of them were tried on."""
    by_world: dict[int, list[Point]] = {}
    for one in series:
        for point in one.points[1:]:
            if point.speedup is not None:
                by_world.setdefault(point.world, []).append(point)
    shared = {world: points for world, points in by_world.items() if len(points) > 1}
    if not shared:
        return _alone(series)
    world = max(shared)
    ranked = sorted(shared[world], key=lambda point: _seconds(point).median)
    best, second = ranked[:2]
    text = (
        f"at {workers(world)} an epoch takes {_seconds(best).seconds()} against "
        f"{_seconds(second).seconds()} of {second.strategy}, a speed-up "
        f"of {_speedups(best, second)}"
    )
    if not _faster(best, second):
        return f"No winner can be told between {best.strategy} and {second.strategy}: {text}."
    once = "" if len(best.seeds) > 1 and len(second.seeds) > 1 else " (one run each)"
    return f"{best.strategy} wins{once}: {text}."


def _alone(series: Sequence[Series]) -> str:
    points = [point for one in series for point in one.points[1:] if point.speedup is not None]
    if not points:
        return ""
    best = max(points, key=lambda point: point.world)
    total = f" (total time {best.total_speedup:.2f}x)" if best.total_speedup is not None else ""
    return f"{best.strategy} on {workers(best.world)} is {best.speedup:.2f}x as fast, of {best.ideal:g}x{total}."


def _faster(best: Point, second: Point) -> bool:
    """Whether the difference is more than noise: by a test if there are enough runs, else by its size."""
    ours, theirs = _seconds(best), _seconds(second)
    if least_chance(len(ours.values), len(theirs.values)) <= BEYOND:
        return chance(ours.values, theirs.values) <= BEYOND
    apart = ours.high < theirs.low
    return apart and theirs.median > (1 + _EQUAL) * ours.median


def _speedups(best: Point, second: Point) -> str:
    assert best.speedup is not None
    assert second.speedup is not None
    text = f"{best.speedup:.2f}x against {second.speedup:.2f}x"
    if best.total_speedup is None or second.total_speedup is None:
        return text
    return f"{text} (total time {best.total_speedup:.2f}x against {second.total_speedup:.2f}x)"


def _seconds(point: Point) -> Spread:
    assert point.epoch_s is not None
    return point.epoch_s


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
    """Falls of single runs are reported together, those over several seeds one by one, each with its significance."""
    base = workers(series[0].base.world)
    sentences, known = [], False
    for one in series:
        falls = [(point, point.fall) for point in one.points[1:] if point.fall is not None]
        known = known or bool(falls)
        fallen = [(point, fall) for point, fall in falls if fall > drop]
        single = [(point, fall) for point, fall in fallen if len(point.seeds) == 1 or len(one.base.seeds) == 1]
        if single:
            worlds = join_words([point.world for point, _ in single])
            amounts = join_words([f"{fall:.3f}" for _, fall in single])
            sentences.append(
                f"{one.strategy}: {metric} falls by {amounts} at {worlds} workers against {base}; one seed: can't be "
                "separated from noise."
            )
        sentences += [_judged(one, point, metric, base) for point, fall in fallen if (point, fall) not in single]
    if known and not sentences:
        return [f"{metric} is nowhere more than {drop:g} below {base}."]
    return sentences


def _judged(series: Series, point: Point, metric: str, base: str) -> str:
    spread, base_spread = point.metric, series.base.metric
    assert spread is not None
    assert base_spread is not None
    text = (
        f"{series.strategy}: {metric} at {workers(point.world)} is {_quality(spread)} "
        f"against {_quality(base_spread)} on {base}"
    )
    sizes = (len(spread.values), len(base_spread.values))
    if least_chance(*sizes) > BEYOND:
        return f"{text}: {sizes[0]} and {sizes[1]} seeds are too few to separate that from noise (3 and 3 can)."
    by_chance = chance(spread.values, base_spread.values)
    often = f"chance alone makes it so in {share(by_chance)} of cases"
    return f"{text}: {'beyond' if by_chance <= BEYOND else 'within'} the seeds' noise ({often})."


def chance(low: Sequence[float], high: Sequence[float]) -> float:
    """One-sided p-value of the Wilcoxon-Mann-Whitney test: is `low` below `high`? Exact for small groups.

    The smallest value of 3 against 3 is 0.05, of 2 against 2 it is 1/6. Both groups need at least two values.
    """
    if len({*low, *high}) == 1:
        return 1.0
    # By permutation, as scipy's exact method doesn't handle ties; it deals the ranks in every way if there are few.
    by_permutation = PermutationMethod(n_resamples=_DEALS, random_state=0)
    return float(mannwhitneyu(low, high, alternative="less", method=by_permutation).pvalue)


def least_chance(low: int, high: int) -> float:
    """The smallest `chance` that groups of these sizes can have; 1 for a single value, which has no spread."""
    return 1.0 if min(low, high) == 1 else 1 / math.comb(low + high, low)


def _quality(spread: Spread) -> str:
    return f"{spread.median:.3f} ({spread.low:.3f} to {spread.high:.3f}, n = {len(spread.values)})"


def join_words(values: Sequence[object]) -> str:
    """`4`, `4 and 8`, `4, 8 and 16`."""
    texts = [str(value) for value in values]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))
