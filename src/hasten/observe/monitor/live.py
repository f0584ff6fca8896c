"""`Monitor`: a thread that samples the machine while a run trains, and writes the samples to the run directory."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hasten.observe.monitor.alerts import Alert, alerts_of
from hasten.observe.monitor.gpu import GpuProbe
from hasten.observe.monitor.host import HostProbe
from hasten.observe.monitor.recording import MONITOR_JSONL, RECENT, rank_name
from hasten.observe.monitor.sample import Sample, to_record
from hasten.observe.rundir import append_jsonl

log = logging.getLogger(__name__)

CHECK_EVERY = 30.0
"""Seconds between checks for alerts."""
PACE_STEPS = 10
"""Minimum number of steps over which step time is averaged: a step rarely ends with a sample."""


class Monitor:
    """Samples GPUs, host and pace every `every` seconds from `start` to `stop`, or inside a `with` block.

    folder: the run directory; rank 0 writes monitor.jsonl there, rank 1 monitor-rank1.jsonl and so on.
    steps: gives the number of finished steps, is called by the thread.
    offset_s: the run's age in seconds at `start`, or a function that gives it then.
    rank, world_size: default $RANK and $WORLD_SIZE. gpus: as GpuProbe takes them; () records the host alone.
    tell: receives one line for whatever a person should know, each once; the log by default. send: receives the record
    of each sample, such as a tracker's.
    Nothing that goes wrong here ends the run: a disk that cannot be written is reported once.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: float = 1.0,
        steps: Callable[[], int] | None = None,
        offset_s: float | Callable[[], float] = 0.0,
        rank: int | None = None,
        world_size: int | None = None,
        gpus: Sequence[int | str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.thread_time,
        host: Callable[[], HostProbe] = HostProbe,
        gpu: Callable[[], GpuProbe] | None = None,
        tell: Callable[[str], None] = log.warning,
        send: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        assert every > 0
        self.folder, self.every = folder, every
        self.rank = int(os.environ.get("RANK") or 0) if rank is None else rank
        self.world_size = int(os.environ.get("WORLD_SIZE") or 1) if world_size is None else world_size
        self.note = ""
        """Why no GPU is recorded, or that one was lost; empty while all is well. Known after the first sample."""
        self.alerts: list[Alert] = []
        """Raised so far, each matter once."""
        self.num_samples = 0
        self.cpu_seconds = 0.0
        """Processor time that the sampling took so far."""
        self._steps, self._offset = steps, offset_s
        self._clock, self._cpu_clock, self._tell, self._send = clock, cpu_clock, tell, send
        self._make_host, self._make_gpu = host, gpu if gpu is not None else (lambda: GpuProbe(gpus))
        self._host: HostProbe | None = None
        self._gpu: GpuProbe | None = None
        self._jsonl = folder / rank_name(MONITOR_JSONL, self.rank)
        self._recent: deque[Sample] = deque(maxlen=RECENT)
        self._reported: set[str] = set()
        self._marks: deque[tuple[int, float]] = deque()
        self._has_stepped = False
        self._began = self._checked = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Monitor:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to sample; the first sample is taken at once."""
        assert self._thread is None, "a monitor runs once"
        self.begin()
        self._thread = threading.Thread(target=self._run, name="hasten-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and end the thread; safe to call twice, or before `start`."""
        self._ended.set()
        if self._thread is not None:
            # A driver that hangs must not hang the end of the run as well; the thread is a daemon.
            self._thread.join(timeout=5.0)

    # What the thread does, each part callable by a test

    def begin(self) -> None:
        """Set the clock to the run's age."""
        offset = self._offset() if callable(self._offset) else self._offset
        self._began = self._clock() - offset
        self._checked = self._time()

    def sample(self) -> Sample:
        """Take one sample and write it."""
        first = self._host is None
        if self._host is None or self._gpu is None:
            self._open()
        assert self._host is not None
        assert self._gpu is not None
        now = self._time()
        gpus = self._gpu.read()
        step, step_s = self._pace(now)
        sample = Sample(time=now, step=step, step_s=step_s, host=self._host.read(), gpus=gpus)
        record = to_record(sample)
        self._write(record)
        if self._send is not None:
            self._send(record)
        if self._gpu.note != self.note:
            self.note = self._gpu.note
            self._say_once(self.note)
        # The first has no rates: what a machine did before the run began is not known.
        if not first:
            self._recent.append(sample)
        self.num_samples += 1
        return sample

    def check(self) -> list[Alert]:
        """Check this rank's samples so far for alerts; report the new ones."""
        alerts = alerts_of(self._recent, rank=self.rank, world_size=self.world_size)
        known = {(alert.kind, alert.subject) for alert in self.alerts}
        new = [alert for alert in alerts if (alert.kind, alert.subject) not in known]
        self.alerts += new
        for alert in new:
            self._say(alert.text)
        return new

    def _run(self) -> None:
        due = self._clock()
        while True:
            before = self._cpu_clock()
            is_last = self._ended.is_set()
            try:
                self.sample()
                if is_last or self._time() - self._checked >= CHECK_EVERY:
                    self._checked = self._time()
                    self.check()
            except Exception as error:  # whatever it is, the run is worth more than its monitor
                self._say_once(f"a sample failed ({type(error).__name__}: {error}); the run continues")
            self.cpu_seconds += self._cpu_clock() - before
            if is_last:
                break
            # A late sample delays the next one, rather than being followed by several in a row.
            due = max(due + self.every, self._clock())
            self._ended.wait(max(0.0, due - self._clock()))
        self._close()

    def _time(self) -> float:
        return self._clock() - self._began

    def _open(self) -> None:
        """Create the probes; called in the thread, as a driver may take a second to wake up."""
        self._host, self._gpu = self._make_host(), self._make_gpu()
        self._record(
            "start",
            utc=datetime.now(UTC).isoformat(timespec="seconds"),
            host=socket.gethostname(),
            pid=os.getpid(),
            rank=self.rank,
            world_size=self.world_size,
            every=self.every,
        )

    def _close(self) -> None:
        self._record("stop", cpu_seconds=round(self.cpu_seconds, 4))
        with contextlib.suppress(Exception):
            if self._gpu is not None:
                self._gpu.close()

    def _pace(self, now: float) -> tuple[int | None, float | None]:
        """Steps done, and the seconds of each of those that are new."""
        if self._steps is None:
            return None, None
        step = int(self._steps())
        if self._marks and step == self._marks[-1][0]:
            return step, None
        has_stepped = bool(self._marks) and step > self._marks[-1][0]
        if not (has_stepped and self._has_stepped):  # what lies before the first step is not its time
            self._marks, self._has_stepped = deque([(step, now)]), has_stepped
            return step, None
        self._marks.append((step, now))
        while step - self._marks[1][0] >= PACE_STEPS:
            self._marks.popleft()
        before, since = self._marks[0]
        return step, (now - since) / (step - before)

    def _record(self, kind: str, **fields: Any) -> None:
        self._write({"kind": kind, "time": round(self._time(), 3), **fields})

    def _write(self, record: dict[str, Any]) -> None:
        try:
            append_jsonl(self._jsonl, record)
        except OSError as error:
            if "unwritable" not in self._reported:
                self._reported.add("unwritable")
                self._say(
                    f"{self.folder} cannot be written to ({error.strerror or error}); the run continues, "
                    "and samples are lost until there is room again"
                )

    def _say_once(self, text: str) -> None:
        """Print a message and write it to the file, the first time only."""
        if text and text not in self._reported:
            self._reported.add(text)
            self._say(text)
            self._record("note", text=text)

    def _say(self, text: str) -> None:
        with contextlib.suppress(Exception):
            self._tell(f"monitor: {text}")
