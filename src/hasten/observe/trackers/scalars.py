"""Records and settings, nested as they are in the run directory, as the flat names that trackers know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hasten.config.url import is_url, shown
from hasten.observe.trackers.base import Plain, Scalar
from hasten.observe.values import integer, number

_KINDS = {"sample": "monitor"}
"""Kinds of records that are tracked under other names."""
_PLACES = ("kind", "step", "time", "time_s")
"""Fields of a record that identify it and are not results."""
_UNTRACKED = ("accelerators", "environment")
"""Parts of the summary that are no results; they are in plan.json and env.json."""


def is_sample(record: Mapping[str, Any]) -> bool:
    """Whether a record is one of the monitor's many, of which some may be left out."""
    return record.get("kind") in ("sample", "monitor")


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
