"""A/B timing that is robust to noise: interleaved rounds, a confidence interval, and no verdict on a busy machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hasten.observe.cpu_load import BUSY, LoadMeter

Verdict = Literal["faster", "slower", "same", "unclear"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What one arm gained over the base."""

    arm: str
    gain: float
    """1.2 means that the arm does 1.2 times the work in a time."""
    low: float
    """Lower end of the interval that holds the gain of a round at about 95 % (order statistics), and `gain` itself."""
    high: float
    verdict: Verdict
    why: str
    """Why the verdict is unclear; empty otherwise."""

    def __str__(self) -> str:
        text = f"{self.verdict}: {self.gain:.2f} times as fast ({self.low:.2f} to {self.high:.2f})"
        return f"{text}; {self.why}" if self.why else text


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Every arm against the base, with the raw times."""

    base: str
    seconds: dict[str, list[float]]
    """Times of each arm, in the order of the rounds."""
    others: float
    """Cores that other programs used meanwhile."""
    arms: dict[str, Compared] = field(default_factory=dict)

    @property
    def busy(self) -> bool:
        return self.others > BUSY

    def median(self, arm: str) -> float:
        """Median seconds of an arm."""
        return statistics.median(self.seconds[arm])


def compare(
    arms: Mapping[str, Callable[[], object]],
    *,
    base: str,
    sync: Callable[[], object] | None = None,
    rounds: tuple[int, int] = (6, 24),
    least: float = 0.03,
    seconds: float = 30.0,
    hopeless: float = math.inf,
    best_only: bool = False,
    meter: LoadMeter | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time `arms` interleaved, the order reversed every other round, until each verdict is final or a limit is reached.

    arms: calls by name; one that returns a float is recorded by that (seconds), any other by its wall time, for which
    `sync` waits for the device. rounds: least and largest number, after an unrecorded one; `seconds` is when
    a new round is no longer begun, however many were made. least: a gain or loss below this share counts as none.
    hopeless: an arm whose best of two or more times is over this many times the best of all is not timed again.
    best_only: only the fastest arm matters, so that the others' verdicts may stay unclear once it certainly beats them.
    An arm that raises TimeoutError ends it: what was timed counts, the first round of all if there is no other; without
    one the error is raised.
    A gain is faster or slower only if its whole interval says so, and unclear wherever others used over 0.3 cores.
    """
    assert base in arms
    meter = meter or LoadMeter()
    meter.others()
    times: dict[str, list[float]] = {name: [] for name in arms}
    first: dict[str, list[float]] = {name: [] for name in arms}
    begun = clock()
    try:
        for number in range(1 + rounds[1]):
            best = min((min(each) for each in times.values() if each), default=math.inf)
            for name in list(arms)[:: 1 if number % 2 == 0 else -1]:
                if len(times[name]) > 1 and name != base and min(times[name]) > hopeless * best:
                    continue
                start = clock()
                returned = arms[name]()
                if sync is not None:
                    sync()
                took = clock() - start
                (times if number else first)[name].append(returned if isinstance(returned, float) else took)
            if number and clock() - begun > seconds:
                break
            if number >= rounds[0] and _decided(times, base, least, number, best_only):
                break
    except TimeoutError:
        times = times if all(times.values()) else first
        if not all(times.values()):
            raise
    others = meter.others()
    return Comparison(base=base, seconds=times, others=others, arms=_verdicts(times, base, least, others))


def _decided(times: dict[str, list[float]], base: str, least: float, count: int, best_only: bool) -> bool:
    """Whether no further round is needed of the arms that have been timed in all `count` rounds."""
    judged = [judge(times[base], each, least) for each in times.values() if len(each) == count]
    certain = max((low for _, low, _, verdict in judged if verdict == "faster"), default=0.0)
    return all(verdict != "unclear" or (best_only and high < certain) for _, _, high, verdict in judged)


def _verdicts(times: dict[str, list[float]], base: str, least: float, others: float) -> dict[str, Compared]:
    results = {}
    for name in (each for each in times if each != base):
        gain, low, high, verdict = judge(times[base], times[name], least)
        why = ""
        if others > BUSY:
            verdict, why = "unclear", f"other programs used {others:.1f} cores meanwhile"
        elif verdict == "unclear":
            why = f"the runs spread too much, after {len(times[name])} rounds"
        results[name] = Compared(arm=name, gain=gain, low=low, high=high, verdict=verdict, why=why)
    return results


def judge(base: list[float], arm: list[float], least: float) -> tuple[float, float, float, Verdict]:
    """Ratio of the medians, the ends of its interval, and the verdict: unclear for fewer than 5 rounds.

    The interval is that of the paired rounds' ratios, which drift of the machine does not widen, and it includes the
    ratio of the medians: where the two disagree, as with times of two kinds, the verdict stays open. An arm that was
    given up has fewer rounds than the base.
    """
    rounds = min(len(base), len(arm))
    gain = statistics.median(base[:rounds]) / max(statistics.median(arm[:rounds]), 1e-9)
    low, high, enough = _interval([one / max(other, 1e-9) for one, other in zip(base, arm, strict=False)])
    low, high = min(low, gain), max(high, gain)
    return gain, low, high, _verdict_of(low, high, least) if enough else "unclear"


def _interval(values: list[float]) -> tuple[float, float, bool]:
    """Ends of the interval of the median at about 95 %, and whether there are values enough for one: at least 5."""
    values, n = sorted(values), len(values)
    # The interval from the k-th smallest to the k-th largest misses the median with probability 2 * P(Bin(n, 1/2) < k).
    k, missed, term = 0, 0.0, 0.5**n
    while 2 * (missed + term) <= 0.0626 and k < n // 2:
        missed += term
        k += 1
        term = term * (n - k + 1) / k
    return (values[k - 1], values[n - k], True) if k else (values[0], values[-1], False)


def _verdict_of(low: float, high: float, least: float) -> Verdict:
    if low > 1 + least:
        return "faster"
    if high < 1 - least:
        return "slower"
    if low >= 1 - 2 * least and high <= 1 + 2 * least:
        return "same"
    return "unclear"
