"""One way of doing a thing against another, timed in turns, inside the user's own process."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

FEWEST, USUAL, MOST = 6, 15, 60
"""Rounds. Below 5 no interval holds the median at about 95 %; beyond the usual number, only while it is wide."""
_WIDE = 1.15
"""Upper over lower end. Going on by the width, not by the gain, keeps a chance gain from ending the search."""
_GRAIN = 0.02
"""Seconds that a timed piece lasts at least: shorter calls are repeated within it, as single ones drown in jitter."""


def versus(
    base: Callable[[], object], arm: Callable[[], object], seconds: float, sync: Callable[[], object] | None = None
) -> dict[str, Any]:
    """Times of `base` and `arm` in turns: medians in seconds a call, the gain of `arm` and its interval.

    What is too slow for `seconds` gives {"skipped": why}. No verdict here: who reads it sets the threshold.
    """
    begun = time.perf_counter()
    calls = (base, arm)
    once = 0.0
    for call in (base, arm, base, arm):  # Unrecorded: the first ones allocate, and choose kernels.
        once = _timed(call, 1, sync)
        if time.perf_counter() - begun > seconds / 3:
            return {"skipped": f"a call takes {once:.2g} s: no time for {FEWEST} rounds of two"}
    once = max(once, _timed(base, 1, sync))
    left = seconds - (time.perf_counter() - begun)
    inner = max(1, min(50, int(_GRAIN / max(once, 1e-9)), int(left / (2 * FEWEST * max(once, 1e-9)))))
    rounds = int(left / (2 * inner * max(once, 1e-9)))
    if rounds < FEWEST:
        return {"skipped": f"a call takes {once:.2g} s: no time for {FEWEST} rounds of two"}
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(min(rounds, MOST)):
        if number >= FEWEST and time.perf_counter() - begun > seconds:
            break
        if number >= USUAL and number % 5 == 0:
            _, low, high = interval(times[0], times[1])
            if high < _WIDE * low:
                break
        if time.perf_counter() - begun > 2 * seconds:
            return {"skipped": f"the times grew meanwhile: {number} rounds took twice the time there was"}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            times[which].append(_timed(calls[which], inner, sync))
    gain, low, high = interval(times[0], times[1])
    return {
        "base_s": statistics.median(times[0]),
        "arm_s": statistics.median(times[1]),
        "gain": gain,
        "low": low,
        "high": high,
        "rounds": len(times[0]),
    }


def _timed(call: Callable[[], object], inner: int, sync: Callable[[], object] | None) -> float:
    start = time.perf_counter()
    for _ in range(inner):
        call()
    if sync is not None:
        sync()
    return (time.perf_counter() - start) / inner


def interval(base: list[float], arm: list[float]) -> tuple[float, float, float]:
    """Median of the rounds' base / arm, and the ends of the interval that holds it at about 95 % (order statistics)."""
    ratios = sorted(base[i] / arm[i] for i in range(len(base)))
    n = len(ratios)
    # The interval from the k-th smallest to the k-th largest misses the median with probability 2 * P(Bin(n, 1/2) < k).
    k, missed, term = 0, 0.0, 0.5**n
    while 2 * (missed + term) <= 0.0626 and k < n // 2:
        missed += term
        k += 1
        term = term * (n - k + 1) / k
    k = max(k, 1)
    return statistics.median(ratios), ratios[k - 1], ratios[n - k]


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> tuple[int, int]:
    """Bytes of memory available and in all; (0, 0) where the system doesn't say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            lines = dict(line.split(":", 1) for line in file)
        return tuple(1024 * int(lines[key].split()[0]) for key in ("MemAvailable", "MemTotal"))  # type: ignore[return-value]
    except (OSError, KeyError, ValueError):
        return 0, 0


class Others:
    """Cores that other programs used since it was made. Processor time of ended children counts as one's own."""

    def __init__(self) -> None:
        self._mark = _times()

    def cores(self) -> float | None:
        """None where the system doesn't say."""
        now = _times()
        if now is None or self._mark is None:
            return None
        wall, busy, own = (now[i] - self._mark[i] for i in range(3))
        return round(max(0.0, (busy - own) / wall), 2) if wall > 0.05 else None


def _times() -> tuple[float, float, float] | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    # user nice system idle iowait irq softirq steal
    busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    return time.perf_counter(), busy, sum(os.times()[:4])


@contextlib.contextmanager
def random_state_kept() -> Iterator[None]:
    """Whatever is drawn inside, the random states of Python, NumPy and torch are afterwards as before."""
    numpy = sys.modules.get("numpy")
    python, torch_state = random.getstate(), torch.get_rng_state()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(torch_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def random_mark() -> tuple[Any, ...]:
    """What changes as soon as anything is drawn from a global generator."""
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else ("", [], 0, 0, 0.0)
    return random.getstate(), bytes(torch.get_rng_state().numpy()), bytes(drawn[1]), drawn[2:]
