"""CPU use by other programs, which decides whether a timing can be trusted, and how many cores are left."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from hasten.observe.cores import allowed_cpus

BUSY = 0.3
"""Cores that other programs may use before a timing is called doubtful."""


class LoadMeter:
    """Cores used by other programs since the meter was created or last read, of those that this process may run on.

    Stolen time counts too.
    """

    def __init__(self, own_seconds: Callable[[], float] | None = None) -> None:
        """own_seconds: CPU time that is not of others; None is that of this process and its descendants.

        Finding the descendants takes some milliseconds; `time.process_time` is without them.
        """
        self._own_seconds = own_seconds or _own_cpu
        self._cpus = allowed_cpus()
        self._mark = self._now()

    def others(self) -> float:
        """Mean cores of others since the last mark, which moves to now; ask no sooner than 10 ms after it."""
        before, self._mark = self._mark, self._now()
        wall = self._mark[0] - before[0]
        total, idle, own_cpu = (later - earlier for later, earlier in zip(self._mark[1:], before[1:], strict=True))
        if total <= 0 or wall <= 0:
            return 0.0
        busy = len(self._cpus) * (1 - idle / total)
        return round(max(0.0, busy - own_cpu / wall), 2)

    def _now(self) -> tuple[float, float, float, float]:
        """Wall time, total and idle CPU time, and our own CPU time, in seconds."""
        total, idle = 0.0, 0.0
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            if number in self._cpus:
                idle += times.idle + getattr(times, "iowait", 0.0)
                # Guest time is part of user time already.
                total += sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return time.perf_counter(), total, idle, self._own_seconds()


def other_cores(seconds: float = 1.0) -> float:
    """Cores used by other programs over the next `seconds`."""
    meter = LoadMeter()
    time.sleep(seconds)
    return meter.others()


def _own_cpu() -> float:
    """CPU time of this process and its descendants, including those that have ended and were waited for."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
        total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total
