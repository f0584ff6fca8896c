"""The files of the monitor: their names, and what can be read from them, also while they grow."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.observe.monitor.sample import Sample, from_record

MONITOR_JSONL = "monitor.jsonl"
RECENT = 1800
"""Samples that the alerts of a running monitor look at: half an hour, where there is one a second."""
RECENT_BYTES = 2**20
"""End of a file that a live view reads: more than `RECENT` samples."""
_RANK = re.compile(r"monitor(?:-rank(\d{1,6}))?\.jsonl")


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


def recordings(folder: Path, tail: int | None = None) -> list[MonitorRecording]:
    """Recordings of a run directory, by rank; empty if there is none. tail: as `read_records` takes it."""
    named = [(path, _RANK.fullmatch(path.name)) for path in folder.glob("monitor*.jsonl")]
    ranks = sorted((int(match[1] or 0), path) for path, match in named if match and path.is_file())
    return [read_recording(path, rank, tail) for rank, path in ranks]


def read_recording(path: Path, rank: int = 0, tail: int | None = None) -> MonitorRecording:
    """The content of one file."""
    records, damaged = read_records(path, tail)
    samples: list[Sample] = []
    notes: dict[str, None] = {}
    processes, is_open = 0, False
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
            processes, is_open = processes + 1, True
        elif kind == "stop":
            is_open = False
        elif kind == "note" and record.get("text"):
            notes[str(record["text"])] = None
    return MonitorRecording(
        path=path, rank=rank, samples=tuple(samples), notes=tuple(notes), is_open=is_open, damaged=damaged
    )
