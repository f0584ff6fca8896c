"""Two implementations of the same work, timed interleaved inside the user's own process."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

FEWEST, USUAL, MOST = 5, 15, 60
"""Rounds. Below 5 no interval holds the median at about 94 %; beyond the usual number, only while it is wide."""
LEAST_GAIN = 1.05
"""If none of the first rounds reaches this gain, the remaining rounds are skipped."""
_HOPELESS = 3
_WIDE = 1.15
"""Ratio of the interval's ends. Stopping by width rather than by gain keeps a chance gain from ending the search."""
_GRAIN = 0.02
"""Seconds that a timed piece lasts at least: shorter calls are repeated within it, as single ones drown in jitter."""


def versus(
    base: Callable[[], object],
    arm: Callable[[], object],
    seconds: float,
    sync: Callable[[], object] | None = None,
    clock: Callable[[], float] | None = None,
) -> dict[str, Any]:
    """Times of `base` and `arm`, interleaved: medians in seconds a call, the gain of `arm` and its interval.

    clock: by which the rounds are timed; wall time by default.

    Slow calls get fewer rounds, and it ends early if no round gains `LEAST_GAIN`; "low" is 0.0 then, as too few rounds
    prove nothing. Calls that are too slow even for that give {"skipped": why, "needs_s": seconds needed}. The caller
    sets the threshold for a verdict.
    """
    if seconds <= 0:
        return {"skipped": "no time left"}
    begin = time.perf_counter()
    calls = (base, arm)
    # Not recorded: the first calls allocate and choose kernels.
    wall = time.perf_counter
    first = [_timed(call, 1, sync, wall) for call in calls]
    if 6 * sum(first) < seconds:
        first = [_timed(call, 1, sync, wall) for call in calls]
    once = max(first)
    elapsed = time.perf_counter() - begin
    needs = 2 * once * FEWEST + elapsed
    if 2 * once * _HOPELESS > seconds - elapsed:
        return {"skipped": f"a call takes {once:.2g} s, and {FEWEST} rounds of two are wanted", "needs_s": needs}
    remaining = seconds - elapsed
    inner = max(1, min(50, int(_GRAIN / max(once, 1e-9)), int(remaining / (2 * FEWEST * max(once, 1e-9)))))
    times: tuple[list[float], list[float]] = ([], [])
    clock = clock or wall
    started = wall(), clock()
    for number in range(MOST):
        passed = time.perf_counter() - begin
        if number == _HOPELESS and max(times[0][i] / times[1][i] for i in range(number)) < LEAST_GAIN:
            break
        if number >= FEWEST and passed > seconds:
            break
        if number >= USUAL and number % 5 == 0:
            _, low, high = interval(times[0], times[1])
            if high < _WIDE * low:
                break
        if passed > 2 * seconds:
            return {"skipped": f"{number} rounds took twice the time there was", "needs_s": needs}
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            times[which].append(_timed(calls[which], inner, sync, clock))
    gain, low, high = interval(times[0], times[1])
    return {
        "base_s": statistics.median(times[0]),
        "arm_s": statistics.median(times[1]),
        "gain": gain,
        "low": low if len(times[0]) >= FEWEST else 0.0,
        "high": high,
        "rounds": len(times[0]),
        # Wall seconds of a second of the clock: those of a step are wall seconds.
        "slowed": (wall() - started[0]) / max(clock() - started[1], 1e-9),
    }


def _timed(
    call: Callable[[], object], inner: int, sync: Callable[[], object] | None, clock: Callable[[], float]
) -> float:
    start = clock()
    for _ in range(inner):
        call()
    if sync is not None:
        sync()
    return (clock() - start) / inner


def interval(base: list[float], arm: list[float]) -> tuple[float, float, float]:
    """Ratio of the medians of base and arm, and the ends of an interval of about 95 % that holds it.

    The interval is that of the rounds' ratios (order statistics), widened to the ratio of the medians.
    """
    ratios = sorted(base[i] / arm[i] for i in range(len(base)))
    n = len(ratios)
    # The interval from the k-th smallest to the k-th largest misses the median with probability 2 * P(Bin(n, 1/2) < k).
    k, missed, term = 0, 0.0, 0.5**n
    while 2 * (missed + term) <= 0.0626 and k < n // 2:
        missed += term
        k += 1
        term = term * (n - k + 1) / k
    k = max(k, 1)
    gain = statistics.median(base) / statistics.median(arm)
    return gain, min(ratios[k - 1], gain), max(ratios[n - k], gain)


def memory() -> tuple[int, int]:
    """Bytes of memory available and in all; (0, 0) if the system doesn't report them."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            lines = dict(line.split(":", 1) for line in file)
        return tuple(1024 * int(lines[key].split()[0]) for key in ("MemAvailable", "MemTotal"))  # type: ignore[return-value]
    except (OSError, KeyError, ValueError):
        return 0, 0


def children_s() -> float:
    """Processor seconds of this process's children, ended and running: its workers."""
    total = sum(os.times()[2:4])
    for child in multiprocessing.active_children():
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{child.pid}/stat", encoding="ascii") as file:  # noqa: PTH123
                words = file.read().rpartition(")")[2].split()
            total += (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return total


class Others:
    """Cores that other programs used since it was made. Processor time of ended children counts as one's own."""

    def __init__(self) -> None:
        self._mark = _times()

    def cores(self) -> float | None:
        """None if the system doesn't report it."""
        now = _times()
        if now is None or self._mark is None:
            return None
        wall, busy, own_s = (now[i] - self._mark[i] for i in range(3))
        return round(max(0.0, (busy - own_s) / wall), 2) if wall > 0.05 else None


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
    """Restore the random states of Python, NumPy and torch after the block."""
    numpy, python = sys.modules.get("numpy"), random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def random_mark() -> tuple[Any, ...]:
    """A value that changes as soon as anything is drawn from a global generator."""
    numpy = sys.modules.get("numpy")
    numpy_state = numpy.random.get_state() if numpy is not None else ("", [], 0, 0, 0.0)
    return random.getstate(), bytes(torch.get_rng_state().numpy()), bytes(numpy_state[1]), numpy_state[2:]
