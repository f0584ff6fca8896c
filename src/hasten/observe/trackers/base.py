"""The interface of a tracker and the types that it receives."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from hasten.config.url import is_url, shown
from hasten.observe.rundir import write_json
from hasten.observe.values import integer, mapping, number

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


_KINDS = {"sample": "monitor"}
"""Kinds of records that are tracked under other names."""
_PLACES = ("kind", "step", "time", "time_s")
"""Fields of a record that identify it and are not results."""
_UNTRACKED = ("accelerators", "environment")
"""Parts of the summary that are no results; they are in plan.json and env.json."""


def scalars_of(record: Mapping[str, Any], *, step: int, time: float) -> list[Scalar]:
    """The finite numbers of a record of metrics.jsonl or the monitor; texts and flags are left out.

    step: of the record if it names none. time: seconds since 1970.
    """
    kind, recorded = str(record.get("kind", "other")), integer(record.get("step"))
    step = step if recorded is None else recorded
    results = {key: value for key, value in record.items() if key not in _PLACES}
    named = ((name, number(value)) for name, value in _leaves(results, _KINDS.get(kind, kind), "/"))
    return [Scalar(name, value, step, time) for name, value in named if value is not None]


def flat_config(config: Mapping[str, Any]) -> dict[str, Plain]:
    """Settings as `sample.batch_size`, with lists and None as text, and URLs without logins and signatures."""
    flat = {name: _plain(value) for name, value in _leaves(config, "", ".")}
    return {name: shown(value) if isinstance(value, str) and is_url(value) else value for name, value in flat.items()}


def flat_summary(summary: Mapping[str, Any]) -> dict[str, Plain]:
    """A run's summary as `best/value`; what is not known, and what is no result, is left out."""
    results = {key: value for key, value in summary.items() if key not in _UNTRACKED}
    known = ((name, value) for name, value in _leaves(results, "", "/") if value is not None)
    return {name: _plain(value) for name, value in known if not isinstance(value, float) or math.isfinite(value)}


def _leaves(value: Any, name: str, between: str) -> Iterator[tuple[str, Any]]:
    """Values with the path to each; the entries of a list of mappings go by their index."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(entry, _join_name(name, str(key), between), between)
    elif isinstance(value, list | tuple) and value and all(isinstance(entry, Mapping) for entry in value):
        for number, entry in enumerate(value):
            rest = {key: item for key, item in entry.items() if key != "index"}
            yield from _leaves(rest, _join_name(name, str(entry.get("index", number)), between), between)
    else:
        yield name, value


def _join_name(name: str, key: str, between: str) -> str:
    # A name is a path to some trackers, so that no key may add to the path or lead out of it.
    key = key.replace("/", "_").strip() or "_"
    key = "_" if key.strip(".") == "" else key
    return f"{name}{between}{key}" if name else key


def _plain(value: Any) -> Plain:
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, list | tuple):
        return ", ".join(f"({_plain(entry)})" if isinstance(entry, list | tuple) else f"{entry}" for entry in value)
    return "none" if value is None or value == {} else str(value)
