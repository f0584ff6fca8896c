"""Checked access to JSON values of unknown origin (a value of the requested type, or nothing), and times as text."""

from __future__ import annotations

import math
from typing import Any


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def entries(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def numbers(value: Any) -> dict[str, float]:
    """The entries of a JSON object that are finite numbers."""
    converted = {str(key): number(entry) for key, entry in mapping(value).items()}
    return {key: entry for key, entry in converted.items() if entry is not None}


def number(value: Any) -> float | None:
    """`value` as a float if it is a finite JSON number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def integer(value: Any) -> int | None:
    converted = number(value)
    return None if converted is None else int(converted)


def duration(seconds: float) -> str:
    """`0.42 s`, `96 s`, `12 min 05 s` or `3 h 20 min`."""
    if seconds < 10:
        return f"{seconds:.2g} s" if 0 < seconds < 1 else f"{seconds:.1f} s"
    if round(seconds) < 600:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
