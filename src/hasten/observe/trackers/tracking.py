"""`Tracking`: sends a run's records to its trackers, each in a thread of its own; the training never waits for them."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hasten.observe.trackers.base import Ids, Status, TrackedRun, Tracker, flat_config, flat_summary, scalars_of

log = logging.getLogger(__name__)

CLOSE_S = 60.0
"""Seconds that the end of a run waits for its trackers, which may still be importing their libraries."""
MOST_SAMPLES = 1000
"""Records that may wait when one of the monitor's samples comes, which is left out otherwise."""
_NEEDS = {"tensorboard": ("tensorboard",), "mlflow": ("mlflow", "sqlalchemy"), "wandb": ("wandb",)}
"""Packages by tracker. `mlflow-skinny` brings mlflow without what its database takes."""


def check_trackers(names: Sequence[str]) -> list[str]:
    """A sentence for each of `names` whose package is missing, with what to do."""
    missing = [name for name in names if not all(map(_is_installed, _NEEDS[name]))]
    return [f"observe.trackers: {name} is not installed; {_install_command(name)}, or leave it out" for name in missing]


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


class Worker(threading.Thread):
    """Feeds the tracker `tracker` with the calls that are put into `calls`; None ends it."""

    def __init__(self, tracker: str, run: TrackedRun) -> None:
        super().__init__(name=f"hasten-{tracker}", daemon=True)
        self.tracker, self.tracked = tracker, run
        self.calls: queue.SimpleQueue[Callable[[Tracker], None] | None] = queue.SimpleQueue()

    def run(self) -> None:
        try:
            tracker = importlib.import_module(f"hasten.observe.trackers.{self.tracker}").begin(self.tracked)
            while (call := self.calls.get()) is not None:
                call(tracker)
        # A library may also call sys.exit; no failure of a tracker may end the run or be reported twice.
        except (Exception, SystemExit) as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            cure = f"; {_install_command(self.tracker)}" if isinstance(error, ImportError) else ""
            log.warning("%s: the run is not tracked there any further (%s)%s", self.tracker, reason, cure)


class Tracking:
    """Sends each `log`ged record to every tracker of `names`; a context manager around the training.

    A tracker starts up (imports included), writes and ends in its own thread. One that is not installed or fails
    is reported once, as a warning, and left out from then on: the run continues, and metrics.jsonl has all values.
    Records of the training wait as long as they must; a monitor's samples are left out where more than 1000 records
    wait. Under several ranks only rank 0 (of the environment's RANK) tracks.

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
                is_late = record.get("kind") == "sample" and worker.calls.qsize() > MOST_SAMPLES
                if worker.is_alive() and not is_late:
                    worker.calls.put(lambda tracker: tracker.write(scalars))

    def summary(self, summary: Mapping[str, Any]) -> None:
        """What summary.json holds, for the end of the run."""
        self._summary = dict(summary)

    def close(self, status: Status | None = None) -> None:
        """End every tracker, waiting at most `CLOSE_S`. Safe to call twice."""
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        if status is None:
            status = "interrupted" if self._summary.get("status") == "interrupted" else "finished"
        until = time.monotonic() + CLOSE_S
        for worker in self._workers:
            worker.calls.put(lambda tracker: tracker.end(status, flat_summary(self._summary)))
            worker.calls.put(None)
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
            if worker.is_alive():
                log.warning("%s: did not finish in time; its last records may be missing there", worker.tracker)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.close("interrupted" if issubclass(kind, KeyboardInterrupt) else "failed")
