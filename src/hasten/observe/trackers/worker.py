"""Runs a tracker in a thread with a queue of records, and checks that its package is installed."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from hasten.observe.trackers.base import Plain, Scalar, Status, Tracker

log = logging.getLogger(__name__)

MOST_SAMPLES = 1000
"""Samples of the monitor that may wait; the training's own records are few and always wait."""
START_S = 60.0
"""Seconds that a tracker may take to import its library and to begin, before it is given up at the end of the run."""

_NEEDS = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy"),
    "wandb": ("wandb",),
    "jsonl": (),
}
"""Packages by tracker. `mlflow-skinny` brings mlflow without what its database takes."""


def check_trackers(names: Sequence[str]) -> list[str]:
    """A sentence for each of `names` that is no tracker, or whose package is missing, with what to do."""
    mistakes = []
    for name in names:
        if name not in _NEEDS:
            mistakes.append(f"observe.trackers: there is no tracker {name!r}; choose from {', '.join(_NEEDS)}")
        elif not all(_is_installed(package) for package in _NEEDS[name]):
            mistakes.append(f"observe.trackers: {name} is not installed; {_install_command(name)}, or leave it out")
    return mistakes


def _install_command(name: str) -> str:
    """The command that installs a tracker."""
    return f"pip install {name}" if name == "tensorboard" else f"pip install 'hasten[{name}]'"


def _is_installed(package: str) -> bool:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    # W&B leaves a folder `wandb` where it ran, which Python takes for a package without an origin.
    return spec is not None and spec.origin is not None


class Worker:
    """Feeds the tracker `name`. begin: makes it, instead of the function of that name in the tracker's module."""

    def __init__(self, name: str, run: Any, *, begin: Callable[[Any], Tracker] | None = None) -> None:
        self.name, self._tracked, self._begin = name, run, begin
        self._waiting: deque[tuple[bool, list[Scalar]]] = deque()
        self._samples = 0
        self._dropped = False
        self._change = threading.Condition()
        self._end: tuple[Status, dict[str, Plain]] | None = None
        self._begun, self._done = threading.Event(), threading.Event()
        self._started = self._begun_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"hasten-{name}", daemon=True)

    def start(self) -> None:
        self._started = time.monotonic()
        self._thread.start()

    def put(self, scalars: list[Scalar], *, is_sample: bool) -> None:
        """Queue one record's numbers; does not wait."""
        with self._change:
            if self._done.is_set():
                return
            self._waiting.append((is_sample, scalars))
            self._samples += is_sample
            if self._samples > MOST_SAMPLES:
                self._drop_oldest_sample()
            self._change.notify()

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        """Nothing more will come."""
        with self._change:
            self._end = (status, summary)
            self._change.notify()

    def wait(self, since: float, seconds: float) -> None:
        """Wait until all is written, `seconds` from `since` or the tracker's later start; warn if it is not."""
        self._begun.wait(max(0.0, self._started + START_S - time.monotonic()))
        until = max(since, self._begun_at) + seconds
        if not self._done.wait(max(0.0, until - time.monotonic())):
            log.warning("%s: did not finish in time, so that its last records may be missing there", self.name)

    def _run(self) -> None:
        try:
            begin = self._begin or importlib.import_module(f"hasten.observe.trackers.{self.name}").begin
            tracker = begin(self._tracked)
            self._begun_at = time.monotonic()
            self._begun.set()
            self._feed(tracker)
        # A library may also call sys.exit; no failure of a tracker may end the run or be reported twice.
        except (Exception, SystemExit) as error:
            self._tell(error)
        finally:
            with self._change:
                self._done.set()
                self._waiting.clear()
            self._begun.set()

    def _feed(self, tracker: Tracker) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._end is not None)
                scalars = [scalar for _, record in self._waiting for scalar in record]
                self._waiting.clear()
                self._samples = 0
                end = self._end
            if scalars:
                tracker.write(scalars)
            elif end is not None:
                tracker.end(*end)
                return

    def _drop_oldest_sample(self) -> None:
        oldest = next(index for index, (is_sample, _) in enumerate(self._waiting) if is_sample)
        del self._waiting[oldest]
        self._samples -= 1
        if not self._dropped:
            self._dropped = True
            log.warning("%s: is slower than the monitor, so that some of its samples are left out there", self.name)

    def _tell(self, error: BaseException) -> None:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        cure = (
            f"; {_install_command(self.name)}" if isinstance(error, ImportError) or check_trackers([self.name]) else ""
        )
        log.warning("%s: the run is not tracked there any further (%s)%s", self.name, reason, cure)
