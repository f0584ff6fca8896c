"""Wall time of a run by named spans."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


class _Span:
    """One name's time. Re-entering it while it is open adds nothing: only the outermost span counts."""

    __slots__ = ("_depth", "_start", "_total")

    def __init__(self) -> None:
        self._total = 0
        self._start = 0
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._start = time.perf_counter_ns()

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._total += time.perf_counter_ns() - self._start

    def add(self, seconds: float) -> None:
        self._total += round(seconds * 1e9)

    def seconds(self) -> float:
        open_for = time.perf_counter_ns() - self._start if self._depth else 0
        return (self._total + open_for) / 1e9


class Clock:
    """The wall time of a run, in total and by named spans, for one thread.

    Different names may nest, and then both count the inner time: "validate" inside "run" is part of "run".
    """

    def __init__(self, started: float | None = None, tell: Callable[[str], None] | None = None) -> None:
        """started: value of `time.perf_counter()` at which the run began; None is now. tell: shows what begins now."""
        self._started = time.perf_counter() if started is None else started
        self._tell = tell
        self._spans: dict[str, _Span] = {}

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._started

    def left(self, limit: float | None) -> float:
        """Seconds until the run is `limit` seconds old; infinite without a limit."""
        return math.inf if limit is None else limit - self.elapsed

    def span(self, name: str) -> _Span:
        """A context manager whose time is added to `name`; its `add` adds seconds that were measured otherwise."""
        existing = self._spans.get(name)
        if existing is None:
            existing = self._spans[name] = _Span()
        return existing

    def tell(self, text: str) -> None:
        """Say what the run is about to do, to whoever watches it."""
        if self._tell is not None:
            self._tell(text)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by name so far, open spans included, in the order of first use."""
        return {name: span.seconds() for name, span in self._spans.items()}


@dataclass(frozen=True, slots=True)
class Spent:
    """What a training has cost: of one process, of all processes of a run, or between two lines of metrics.jsonl."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds by part, without overlap, and "total", which includes the rest."""
    samples: int = 0

    @property
    def total_s(self) -> float:
        return self.seconds.get("total", 0.0)

    @property
    def trained_s(self) -> float:
        """Seconds in steps, the wait for their batches included."""
        return self.seconds.get("train", 0.0) + self.waited_s

    @property
    def waited_s(self) -> float:
        return self.seconds.get("wait_for_data", 0.0)

    @property
    def wait_share(self) -> float:
        """The part of `trained_s` that waited for data, 0..1."""
        return self.waited_s / self.trained_s if self.trained_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.trained_s if self.trained_s > 0 else 0.0

    def __add__(self, other: Spent) -> Spent:
        return self._with(other, 1)

    def __sub__(self, other: Spent) -> Spent:
        return self._with(other, -1)

    def _with(self, other: Spent, sign: int) -> Spent:
        names = {**self.seconds, **other.seconds}
        seconds = {name: self.seconds.get(name, 0.0) + sign * other.seconds.get(name, 0.0) for name in names}
        return Spent(seconds, self.samples + sign * other.samples)


def process_start() -> float:
    """Value of `time.perf_counter()` at which this process was started, for a `Clock` that counts its imports too."""
    return time.perf_counter() - process_start_seconds()


def process_start_seconds() -> float:
    """Seconds since this process was started: a time that includes the interpreter's start and every import."""
    try:
        # psutil counts from a boot time in whole seconds, which is off by up to one; these two clocks agree to 0.01 s.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        since = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        if since >= 0:
            return since
    except (OSError, AttributeError, ValueError, IndexError):
        pass
    import psutil  # not at the top: loading it takes a tenth of `hasten --help`

    return max(0.0, time.time() - psutil.Process().create_time())
