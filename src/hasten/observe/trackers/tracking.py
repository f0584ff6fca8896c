"""`Tracking`: sends a run's records to its trackers in the background; the training never waits for them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hasten.observe.trackers.base import Ids, Status, TrackedRun
from hasten.observe.trackers.scalars import flat_config, flat_summary, is_sample, scalars_of
from hasten.observe.trackers.worker import Worker

log = logging.getLogger(__name__)

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
        project: str,
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


def attach(names: Sequence[str], folder: Path, file: Path) -> None:
    """Give a file that was made after the end, such as the report, to those trackers of a run that keep files.

    Waits at most `CLOSE_S`; failures are reported as warnings.
    """
    if "mlflow" not in names or os.environ.get("RANK", "0") not in ("", "0"):
        return
    from hasten.observe.trackers import mlflow

    ids, folder = Ids(Path(folder)), Path(folder).absolute()
    worker = Worker("mlflow", None, begin=lambda _: mlflow.Attached(folder, ids, Path(file)))
    worker.start()
    worker.end("finished", {})
    worker.wait(time.monotonic(), CLOSE_S)
