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
from statistics import median
from typing import Any

from hasten.observe.monitor.alerts import Alert, alerts_of
from hasten.observe.monitor.gpu import GpuProbe
from hasten.observe.monitor.host import HostProbe
from hasten.observe.monitor.recording import MONITOR_CSV, MONITOR_JSONL, History, rank_name
from hasten.observe.monitor.sample import CLASSIC, COLUMNS, Sample, rows_of, to_record
from hasten.observe.rundir import append_jsonl, append_text

log = logging.getLogger(__name__)

CHECK_EVERY = 30.0
"""Seconds between checks for alerts."""
SAMPLE_COST = 0.002
"""Processor seconds that a sample may take; where it takes more, samples are taken as much less often."""
MOST_STRETCH = 10.0
PACE_STEPS = 10
"""Minimum number of steps over which step time is averaged: a step rarely ends with a sample."""


class Monitor:
    """Samples GPUs, host and pace every `every` seconds from `start` to `stop`, or inside a `with` block.

    folder: the run directory; rank 0 writes monitor.csv and monitor.jsonl there, rank 1 monitor-rank1.csv and so on.
    steps: gives the number of finished steps, is called by the thread. worked: gives the seconds that this rank has
    worked without waiting for other ranks; ranks in lock-step are distinguished by nothing else.
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
        worked: Callable[[], float] | None = None,
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
        self._steps, self._worked, self._offset = steps, worked, offset_s
        self._clock, self._cpu_clock, self._tell, self._send = clock, cpu_clock, tell, send
        self._make_host, self._make_gpu = host, gpu if gpu is not None else (lambda: GpuProbe(gpus))
        self._host: HostProbe | None = None
        self._gpu: GpuProbe | None = None
        self._csv = folder / rank_name(MONITOR_CSV, self.rank)
        self._jsonl = folder / rank_name(MONITOR_JSONL, self.rank)
        self._columns: tuple[str, ...] | None = None
        self._history = History(800, recent=300)
        self._reported: set[str] = set()
        self._costs: deque[float] = deque(maxlen=9)
        self._marks: deque[tuple[int, float, float]] = deque()
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
        step, step_s, work_s = self._pace(now)
        sample = Sample(time=now, step=step, step_s=step_s, work_s=work_s, host=self._host.read(), gpus=gpus)
        self._write(sample)
        if self._gpu.note != self.note:
            self.note = self._gpu.note
            self._say_once(self.note)
        # The first has no rates: what a machine did before the run began is not known.
        if not first:
            self._history.add(sample)
        self.num_samples += 1
        return sample

    def check(self) -> list[Alert]:
        """Check this rank's samples so far for alerts; report the new ones."""
        alerts = alerts_of(self._history.samples(), rank=self.rank, world_size=self.world_size, live=True)
        known = {(alert.kind, alert.subject) for alert in self.alerts}
        new = [alert for alert in alerts if (alert.kind, alert.subject) not in known]
        self.alerts += new
        for alert in new:
            self._say(alert.text)
        return new

    def period(self) -> float:
        """Seconds to the next sample: `every`, or more where samples cost more than `SAMPLE_COST`."""
        cost = median(self._costs) if self._costs else 0.0
        return self.every * min(MOST_STRETCH, max(1.0, cost / SAMPLE_COST))

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
            spent = self._cpu_clock() - before
            self.cpu_seconds += spent
            if self.num_samples > 1:  # the first wakes the driver up
                self._costs.append(spent)
            if is_last:
                break
            # A late sample delays the next one, rather than being followed by several in a row.
            due = max(due + self.period(), self._clock())
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

    def _pace(self, now: float) -> tuple[int | None, float | None, float | None]:
        """Steps done, and the seconds of each of those that are new."""
        if self._steps is None:
            return None, None, None
        step = int(self._steps())
        worked = float(self._worked()) if self._worked is not None else 0.0
        if self._marks and step == self._marks[-1][0]:
            return step, None, None
        has_stepped = bool(self._marks) and step > self._marks[-1][0]
        if not (has_stepped and self._has_stepped):  # what lies before the first step is not its time
            self._marks, self._has_stepped = deque([(step, now, worked)]), has_stepped
            return step, None, None
        self._marks.append((step, now, worked))
        while step - self._marks[1][0] >= PACE_STEPS:
            self._marks.popleft()
        before, since, earlier = self._marks[0]
        num_steps = step - before
        return step, (now - since) / num_steps, (worked - earlier) / num_steps if self._worked is not None else None

    def _write(self, sample: Sample) -> None:
        try:
            if self._columns is None:
                # A file of another version keeps its columns.
                with self._csv.open("a+", encoding="utf-8", errors="replace") as file:
                    file.seek(0)
                    columns = tuple(file.readline(10_000).rstrip().split(","))
                self._columns = columns if columns[: len(CLASSIC)] == CLASSIC else COLUMNS
            names = self._columns
            text = "".join(",".join(row.get(name, "") for name in names) + "\n" for row in rows_of(sample))
            append_text(self._csv, text, header=f"{','.join(names)}\n")
        except OSError as error:
            self._cannot_write(error)
        record = to_record(sample)
        self._write_record(record)
        if self._send is not None:
            self._send(record)

    def _record(self, kind: str, **fields: Any) -> None:
        self._write_record({"kind": kind, "time": round(self._time(), 3), **fields})

    def _write_record(self, record: dict[str, Any]) -> None:
        try:
            append_jsonl(self._jsonl, record)
        except OSError as error:
            self._cannot_write(error)

    def _cannot_write(self, error: OSError) -> None:
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
