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

from hasten.observe.monitor.alerts import alerts_of
from hasten.observe.monitor.probes import GpuProbe, HostProbe
from hasten.observe.monitor.recording import MONITOR_JSONL, RECENT, Sample, to_record
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
    age_s: gives the run's age in seconds, asked at `start`.
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
        age_s: Callable[[], float] = lambda: 0.0,
        rank: int | None = None,
        world_size: int | None = None,
        gpus: Sequence[int | str] | None = None,
        tell: Callable[[str], None] = log.warning,
        send: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        assert every > 0
        self.folder, self.every = folder, every
        self.rank = int(os.environ.get("RANK") or 0) if rank is None else rank
        self.world_size = int(os.environ.get("WORLD_SIZE") or 1) if world_size is None else world_size
        self.num_samples = 0
        self.cpu_seconds = 0.0
        """Processor time that the sampling took so far."""
        self._steps, self._age, self._gpus, self._tell, self._send = steps, age_s, gpus, tell, send
        self._pace = Pace()
        self._jsonl = folder / (f"monitor-rank{self.rank}.jsonl" if self.rank else MONITOR_JSONL)
        self._recent: deque[Sample] = deque(maxlen=RECENT)
        self._said: set[str] = set()
        self._began = 0.0
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
        self._began = time.monotonic() - self._age()
        self._thread = threading.Thread(target=self._run, name="hasten-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take a last sample and end the thread; safe to call twice, or before `start`."""
        self._ended.set()
        if self._thread is not None:
            # A driver that hangs must not hang the end of the run as well; the thread is a daemon.
            self._thread.join(timeout=5.0)

    def _run(self) -> None:
        due = checked = time.monotonic()
        gpu: GpuProbe | None = None
        try:
            # Opened here, as a driver may take a second to wake up.
            host, gpu = HostProbe(), GpuProbe(self._gpus)
            self._record(
                "start",
                utc=datetime.now(UTC).isoformat(timespec="seconds"),
                host=socket.gethostname(),
                pid=os.getpid(),
                rank=self.rank,
                world_size=self.world_size,
                every=self.every,
            )
            is_last = False
            while not is_last:
                is_last = self._ended.is_set()
                try:
                    self._sample(host, gpu)
                    if is_last or time.monotonic() - checked >= CHECK_EVERY:
                        checked = time.monotonic()
                        for alert in alerts_of(self._recent, rank=self.rank, world_size=self.world_size):
                            self._tell_once(alert.text, f"{alert.kind} {alert.subject}")
                except Exception as error:  # whatever it is, the run is worth more than its monitor
                    self._say(f"a sample failed ({type(error).__name__}: {error}); the run continues")
                self.cpu_seconds = time.thread_time()
                # A late sample delays the next one, rather than being followed by several in a row.
                due = max(due + self.every, time.monotonic())
                self._ended.wait(0.0 if is_last else max(0.0, due - time.monotonic()))
        except Exception as error:
            self._say(f"nothing is recorded ({type(error).__name__}: {error}); the run continues")
        self._record("stop", cpu_seconds=round(self.cpu_seconds, 4))
        if gpu is not None:
            gpu.close()

    def _sample(self, host: HostProbe, gpu: GpuProbe) -> None:
        """Take one sample and write it."""
        now, gpus = round(self._time(), 6), gpu.read()  # two within 0.1 ms are two
        step = int(self._steps()) if self._steps is not None else None
        step_s = self._pace.of(step, now) if step is not None else None
        sample = Sample(time=now, step=step, step_s=step_s, host=host.read(), gpus=gpus)
        record = to_record(sample)
        self._write(record)
        if self._send is not None:
            self._send(record)
        if gpu.note:
            self._say(gpu.note)
        # The first has no rates: what a machine did before the run began is not known.
        if self.num_samples:
            self._recent.append(sample)
        self.num_samples += 1

    def _time(self) -> float:
        return time.monotonic() - self._began

    def _record(self, kind: str, **fields: Any) -> None:
        self._write({"kind": kind, "time": round(self._time(), 3), **fields})

    def _write(self, record: dict[str, Any]) -> None:
        try:
            append_jsonl(self._jsonl, record)
        except OSError as error:
            text = f"{self.folder} cannot be written to ({error.strerror or error}); the run continues, "
            self._tell_once(f"{text}and samples are lost until there is room again", "unwritable")

    def _say(self, text: str) -> None:
        """Tell a text and write it to the file, the first time only."""
        if self._tell_once(text, text):
            self._record("note", text=text)

    def _tell_once(self, text: str, matter: str) -> bool:
        """Tell a text unless its matter was told; returns whether it was not."""
        if matter in self._said:
            return False
        self._said.add(matter)
        with contextlib.suppress(Exception):
            self._tell(f"monitor: {text}")
        return True


class Pace:
    """Seconds of a step, from the number of steps that were done at some times."""

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()
        self._has_stepped = False

    def of(self, step: int, now: float) -> float | None:
        """Mean seconds of each step since the call before, over ten at least; None where none has ended since."""
        if self._marks and step == self._marks[-1][0]:
            return None
        has_stepped = bool(self._marks) and step > self._marks[-1][0]
        if not (has_stepped and self._has_stepped):  # what lies before the first step is not its time
            self._marks, self._has_stepped = deque([(step, now)]), has_stepped
            return None
        self._marks.append((step, now))
        while step - self._marks[1][0] >= PACE_STEPS:
            self._marks.popleft()
        before, since = self._marks[0]
        return round((now - since) / (step - before), 6)
