"""What the monitor writes, and reports, alerts and `hasten watch` read, also while the files grow."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from hasten.observe.values import integer

MONITOR_JSONL = "monitor.jsonl"
RECENT = 1800
"""Samples that the alerts of a running monitor look at: half an hour, where there is one a second."""
RECENT_BYTES = 2**20
"""End of a file that a live view reads: more than `RECENT` samples."""
_RANK = re.compile(r"monitor(?:-rank(\d{1,6}))?\.jsonl")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU at one moment; None is a reading that the driver does not support."""

    index: int
    """Number that the driver gives the GPU."""
    util: float | None = None
    """Percent of the time since the driver's last look in which a kernel ran."""
    used: float | None = None
    """MiB, of all processes."""
    total: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    mem_mhz: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] | None = None
    """What holds the clocks down: power_cap, hw_slowdown, sw_thermal, hw_thermal, power_brake, sync_boost."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The machine and this process; rates are means since the sample before."""

    cpu: float | None = None
    """Percent of all cores together."""
    own_cores: float | None = None
    """Cores that this process used, its children left out."""
    ram_used: float | None = None
    """MiB in use without the page cache, which is freed on demand, of the machine or of the container's limit."""
    ram_total: float | None = None
    rss: float | None = None
    """MiB of this process."""
    load: float | None = None
    """Mean number of runnable processes over the last minute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    time: FiniteFloat
    """Seconds since the run started."""
    step: int | None = None
    """Steps done; None where nobody counts."""
    step_s: float | None = None
    """Mean seconds of the steps since the sample before, of ten at least; None where none finished since."""
    host: Host = Host()
    gpus: tuple[Gpu, ...] = ()
    process: int = 0
    """0, and one more for every resume. The reader counts it; it is not written."""


_PARSER = TypeAdapter(Sample)


def to_record(sample: Sample) -> dict[str, Any]:
    """A JSON object; what is not known is left out."""
    return {"kind": "sample", **_PARSER.dump_python(sample, exclude_none=True, exclude={"process"})}


def from_record(record: dict[str, Any], *, process: int = 0) -> Sample | None:
    """The sample that `to_record` wrote; None for anything that is not one."""
    try:
        return replace(_PARSER.validate_python(record), process=process)
    except ValidationError:
        return None


def read_records(path: Path, tail: int | None = None) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects in the lines of a file, and the number of lines that are none; no lines if there is no file.

    tail: bytes at the end of a longer file that are read.
    """
    try:
        with path.open("rb") as file:
            skipped = 0 if tail is None else max(0, os.fstat(file.fileno()).st_size - tail)
            file.seek(skipped)
            lines = file.read().split(b"\n")[1 if skipped else 0 :]
    except OSError:
        return [], 0
    values = [_json(line) for line in lines if line.strip(b" \0\r")]
    records = [value for value in values if isinstance(value, dict)]
    return records, len(values) - len(records)


def _json(line: bytes) -> Any:
    """None for a line that is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class MonitorRecording:
    """One rank's monitor.jsonl."""

    path: Path
    rank: int
    samples: tuple[Sample, ...]
    notes: tuple[str, ...]
    """The monitor's notes on itself: no driver, a lost GPU."""
    is_open: bool
    """Whether the last process that recorded did not end its recording: it runs, or was killed."""
    damaged: int
    """Lines that could not be used."""
    world_size: int | None = None
    """Processes of the last start; None where that is not in what was read."""


def recordings(folder: Path, tail: int | None = None) -> list[MonitorRecording]:
    """Recordings of a run directory, by rank; empty if there is none. tail: as `read_records` takes it.

    Of a run that was resumed by fewer processes, those of the ranks that it still has.
    """
    named = [(path, _RANK.fullmatch(path.name)) for path in folder.glob("monitor*.jsonl")]
    ranks = sorted((int(match[1] or 0), path) for path, match in named if match and path.is_file())
    found = [read_recording(path, rank, tail) for rank, path in ranks]
    size = found[0].world_size if found and found[0].rank == 0 else None
    since = found[0].samples[0].time if found and found[0].samples else 0.0  # in what `tail` leaves
    return [
        each
        for each in found
        if (size is None or each.rank < size) and not (each.samples and each.samples[-1].time < since)
    ]


def read_recording(path: Path, rank: int = 0, tail: int | None = None) -> MonitorRecording:
    """The content of one file."""
    records, damaged = read_records(path, tail)
    samples: list[Sample] = []
    notes: dict[str, None] = {}
    processes, is_open, world_size = 0, False, None
    for record in records:
        kind = record.get("kind")
        if kind == "sample":
            sample = from_record(record, process=max(0, processes - 1))
            if sample is None:
                damaged += 1
                continue
            # A process that was killed after its last checkpoint is followed by one that goes back.
            while samples and samples[-1].time >= sample.time:
                samples.pop()
            samples.append(sample)
            is_open = True
        elif kind == "start":
            processes, is_open, world_size = processes + 1, True, integer(record.get("world_size"))
        elif kind == "stop":
            is_open = False
        elif kind == "note" and record.get("text"):
            notes[str(record["text"])] = None
    return MonitorRecording(
        path=path,
        rank=rank,
        samples=tuple(samples),
        notes=tuple(notes),
        is_open=is_open,
        damaged=damaged,
        world_size=world_size,
    )
