"""Amounts of memory and of time as people write them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_UNITS = {"": 1, "b": 1, **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
          **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}}  # fmt: skip

_DURATIONS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1), **dict.fromkeys(("min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600), **dict.fromkeys(("d", "day", "days"), 86400),
}  # fmt: skip
"""Seconds of a unit of time."""


def _parse(text: str, units: Mapping[str, int]) -> float | None:
    """A number with a unit, in any case of letters; None for what is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = units.get(match[2].lower()) if match else None
    return None if match is None or factor is None else float(match[1]) * factor


def parse_size(text: str) -> int:
    """Bytes of `8GiB`, `500 MB` or `0`. Raises ValueError for what is no size."""
    size = _parse(text, _UNITS)
    if size is None:
        raise ValueError(f"{text!r} is no size; write a number with a unit, such as 8GiB or 500MB")
    if size >= 2**63:
        raise ValueError(f"{text!r} is more than any machine has; write a size such as 8GiB or 500MB")
    return int(size)


def size_text(num_bytes: float) -> str:
    """`3.2 GiB`: three digits at most, and a unit of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" or num_bytes >= 100 else f"{num_bytes:.3g} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.0f} TiB" if num_bytes >= 100 else f"{num_bytes:.3g} TiB"


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `10min`, `1.5 h` or `2 days`. Raises ValueError for what is no duration."""
    seconds = _parse(str(text), _DURATIONS)
    if seconds is None or not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is no duration; write a number with a unit, such as 90s, 10min or 1.5h")
    return seconds


def duration_text(seconds: float) -> str:
    """`45 s`, `12 min` or `1.5 h`."""
    for unit, size in (("s", 1), ("min", 60)):
        if seconds < 100 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.3g} h"
