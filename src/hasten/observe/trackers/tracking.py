"""`Tracking`: sends a run's records to its trackers, each in a thread of its own; the training never waits for them."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hasten.observe.trackers.base import (
    Ids,
    Plain,
    Scalar,
    Status,
    TrackedRun,
    Tracker,
    flat_config,
    flat_summary,
    is_sample,
    scalars_of,
)

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
    """Feeds the tracker `name`."""

    def __init__(self, name: str, run: TrackedRun) -> None:
        self.name, self._tracked = name, run
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
            tracker = importlib.import_module(f"hasten.observe.trackers.{self.name}").begin(self._tracked)
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


CLOSE_S = 10.0
"""Seconds that the end of a run waits for its trackers, from when they have started up."""


class Tracking:
    """Sends each `log`ged record to every tracker of `names`; a context manager around the training.

    A tracker starts up (imports included), writes and ends in its own thread. One that is not installed or fails
    is reported once, as a warning, and left out from then on: the run continues, and metrics.jsonl has all values.
    Records of the training wait as long as they must; of a monitor's samples the oldest are dropped where more than
    1000 wait. Under several ranks only rank 0 (of the environment's RANK) tracks.

    folder: the run directory. run_name: what a tracker shows it as. config: the settings, nested. first: steps done
    by the processes before this one, 0 if the run is not resumed.
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        *,
        project: str = "hasten",
        run_name: str,
        config: Mapping[str, Any],
        first: int = 0,
    ) -> None:
        run = TrackedRun(
            folder=Path(folder).absolute(),
            project=project,
            run_name=run_name,
            config=flat_config(config),
            first=first,
            began=time.time(),
            ids=Ids(Path(folder)),
        )
        is_first_rank = os.environ.get("RANK", "0") in ("", "0")
        self._workers = [Worker(name, run) for name in dict.fromkeys(names)] if is_first_rank else []
        self._step = first
        self._summary: Mapping[str, Any] = {}
        self._process = os.getpid()
        self._closed = False

    def __enter__(self) -> Self:
        for worker in self._workers:
            worker.start()
        return self

    def log(self, record: Mapping[str, Any]) -> None:
        """Send a record as metrics.jsonl or the monitor holds it, from any thread; returns at once and never raises.

        One without a step gets that of the last record that had one.
        """
        # A forked child has the queues and not the threads that empty them.
        if not self._workers or self._closed or os.getpid() != self._process:
            return
        try:
            scalars = scalars_of(record, step=self._step, time=time.time())
        except (TypeError, ValueError, OverflowError) as error:
            log.warning("trackers: a record is left out (%s)", error)
            return
        if scalars:
            self._step = max(self._step, scalars[0].step)
            for worker in self._workers:
                worker.put(scalars, is_sample=is_sample(record))

    def summary(self, summary: Mapping[str, Any]) -> None:
        """What summary.json holds, for the end of the run."""
        self._summary = dict(summary)

    def close(self, status: Status | None = None) -> None:
        """End every tracker, waiting at most `CLOSE_S` for those that have started up. Safe to call twice."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        if status is None:
            status = "interrupted" if self._summary.get("status") == "interrupted" else "finished"
        for worker in self._workers:
            worker.end(status, flat_summary(self._summary))
        since = time.monotonic()
        for worker in self._workers:
            worker.wait(since, CLOSE_S)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")
