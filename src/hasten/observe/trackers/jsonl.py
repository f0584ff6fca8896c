"""RUN/tracking.jsonl: one number per line, for programs that need a flat format."""

from __future__ import annotations

import dataclasses

from hasten.observe.rundir import append_jsonl, read_jsonl, write_jsonl
from hasten.observe.trackers.base import Plain, Scalar, Status, TrackedRun

TRACKING_JSONL = "tracking.jsonl"


class Lines:
    """A line holds name, value, step and time (seconds since 1970); those of the summary have no step and no time."""

    def __init__(self, run: TrackedRun) -> None:
        self._path = run.folder / TRACKING_JSONL
        if run.first:
            lines = [line for line in read_jsonl(self._path) if line.get("step", run.first + 1) <= run.first]
            write_jsonl(self._path, lines)

    def write(self, scalars: list[Scalar]) -> None:
        for scalar in scalars:
            append_jsonl(self._path, dataclasses.asdict(scalar))

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        for name, value in ({"status": status} | summary).items():
            append_jsonl(self._path, {"name": f"summary/{name}", "value": value})


begin = Lines
