"""The interface of a tracker and the types that it receives."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from hasten.observe.rundir import write_json
from hasten.observe.values import mapping

TRACKERS_JSON = "trackers.json"
"""File in the run directory: the id of the run in each tracker, with which a resumed run continues."""

Status = Literal["finished", "interrupted", "failed"]
Plain = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number of one record."""

    name: str
    """kind/key of the record, such as train/loss or validation/dice_per_class/Anterior."""
    value: float
    """Finite."""
    step: int
    """Steps done when it was taken."""
    time: float
    """Seconds since 1970."""


class Ids:
    """The trackers' data about a run that persist from one process to the next."""

    def __init__(self, folder: Path) -> None:
        self._path, self._lock = folder / TRACKERS_JSON, threading.Lock()

    def get(self, tracker: str) -> dict[str, str]:
        """Ids in a tracker; empty if nothing, or nothing readable, was remembered."""
        with self._lock:
            return mapping(self._read().get(tracker))

    def put(self, tracker: str, ids: dict[str, str]) -> None:
        with self._lock:
            write_json(self._path, self._read() | {tracker: ids})

    def _read(self) -> dict[str, Any]:
        try:
            return mapping(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """The run that is tracked."""

    folder: Path
    """The run directory, absolute."""
    project: str
    run_name: str
    config: dict[str, Plain]
    """Flat: `sample.batch_size`."""
    first: int
    """Steps done by the processes before this one: what a killed one sent of later steps is void."""
    began: float
    """Seconds since 1970."""
    ids: Ids


class Tracker(Protocol):
    """Made by a module's `begin(run)`, which may take seconds and raise anything, as may every call here.

    All calls of one tracker come from one thread, which is not the main one.
    """

    def write(self, scalars: list[Scalar]) -> None:
        """Write numbers, mostly in the order of their steps; those of an asynchronous validation come late."""
        ...

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        """The run is over. `summary` is flat (`best/value`), and empty where the run has none."""
        ...
