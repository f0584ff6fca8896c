"""The files of the monitor: their names, and monitor.jsonl read back at once or as it grows."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from pathlib import Path
from typing import Any

from hasten.observe.monitor.sample import Sample, from_record
from hasten.observe.values import number

MONITOR_JSONL = "monitor.jsonl"
RECENT = 1800
"""Samples that a live view and the alerts of a running monitor look at: half an hour, where there is one a second."""
_RANK = re.compile(r"monitor(?:-rank(\d{1,6}))?\.jsonl")


def rank_name(name: str, rank: int) -> str:
    """The file's name for a rank: monitor.jsonl, monitor-rank1.jsonl."""
    stem, _, suffix = name.rpartition(".")
    return name if rank == 0 else f"{stem}-rank{rank}.{suffix}"


def recordings(folder: Path) -> dict[int, Path]:
    """The ranks' monitor.jsonl in a run directory, by rank; empty if there is none."""
    named = [(path, _RANK.fullmatch(path.name)) for path in folder.glob("monitor*.jsonl")]
    return dict(sorted((int(match[1] or 0), path) for path, match in named if match and path.is_file()))


class Follower:
    """New lines of a file that grows; one that was replaced or cut is read from its start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        """Lines that were no JSON objects."""
        self._place = (-1, 0)
        self._rest = b""

    def poll(self) -> list[dict[str, Any]]:
        """Records that are there since the last call; a last line without its end is kept for the next."""
        try:
            with self.path.open("rb") as file:
                inode, size = os.fstat(file.fileno()).st_ino, os.fstat(file.fileno()).st_size
                if inode != self._place[0] or size < self._place[1]:
                    self._rest, self.damaged = b"", 0
                    self._place = (inode, 0)
                file.seek(self._place[1])
                data = file.read()
        except OSError:
            return []
        self._place = (inode, self._place[1] + len(data))
        *lines, self._rest = (self._rest + data).split(b"\n")
        return self._parse(lines)

    def finish(self) -> list[dict[str, Any]]:
        """What the last line without an end holds, for a file that grows no more."""
        rest, self._rest = self._rest, b""
        return self._parse([rest])

    def _parse(self, lines: list[bytes]) -> list[dict[str, Any]]:
        """The JSON objects; empty lines don't count."""
        values = [_json(line) for line in lines if line.strip(b" \0\r")]
        records = [value for value in values if isinstance(value, dict)]
        self.damaged += len(values) - len(records)
        return records


def _json(line: bytes) -> Any:
    """None for a line that is no JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class MonitorRecording:
    """One rank's monitor.jsonl."""

    def __init__(self, path: Path, rank: int = 0, *, limit: int | None = RECENT) -> None:
        """limit: samples that are kept, the last; None keeps all."""
        self.rank, self.path = rank, path
        self.samples: deque[Sample] = deque(maxlen=limit)
        self.notes: list[str] = []
        """The monitor's notes on itself: no driver, a lost GPU."""
        self.is_open = False
        """Whether the last process that recorded did not end its recording: it runs, or was killed."""
        self.every = 1.0
        self.processes = 0
        self._follower = Follower(path)
        self._unusable = 0

    @property
    def damaged(self) -> int:
        """Lines that could not be used."""
        return self._follower.damaged + self._unusable

    def poll(self, *, is_last: bool = False) -> None:
        """Take up what is new. is_last: a last line without an end counts too."""
        for record in self._follower.poll() + (self._follower.finish() if is_last else []):
            self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "sample":
            sample = from_record(record, process=max(0, self.processes - 1))
            if sample is None:
                self._unusable += 1
            else:
                # A process that was killed after its last checkpoint is followed by one that goes back.
                while self.samples and self.samples[-1].time >= sample.time:
                    self.samples.pop()
                self.samples.append(sample)
        elif kind == "start":
            self.processes, self.is_open = self.processes + 1, True
            every = number(record.get("every")) or 0.0
            self.every = every if 0 < every < 1e6 else 1.0
        elif kind == "stop":
            self.is_open = False
        elif kind == "note":
            text = str(record.get("text", ""))
            if text and text not in self.notes:
                self.notes.append(text)
