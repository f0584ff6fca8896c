"""Amounts of memory and of time as people write them."""

from __future__ import annotations

import itertools
import math
import re
from typing import Annotated, Any

_SIZES = {"b": 1} | {
    letter + ending: (1000 if ending == "b" else 1024) ** power
    for power, letter in enumerate("kmgt", 1)
    for ending in ("", "i", "ib", "b")
}
"""Bytes of a unit: `8G` is 8GiB, as for Slurm and Docker."""
_DURATIONS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86400),
}
"""Seconds of a unit."""
_PART = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]+)\s*")
"""A number with a unit."""


class _FromNumber:
    """For pydantic: text that may be given as a number, so that the check of the field can name the units."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> dict[str, Any]:
        return {"type": "str", "coerce_numbers_to_str": True}


class _InSeconds:
    """For pydantic: a number of seconds that may be given as a duration."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> dict[str, Any]:
        function = {"type": "no-info", "function": parse_seconds}
        return {"type": "function-before", "function": function, "schema": {"type": "float"}}


Amount = Annotated[str, _FromNumber]
"""A number with a unit, as text."""
Seconds = Annotated[float, _InSeconds]
"""A number of seconds, for which `90s`, `2m` or `1h30m` may be given."""


def parse_size(text: str) -> int:
    """Bytes of `8GiB`, `8G`, `500 MB` or `0`. Raises ValueError for what is no size."""
    if re.fullmatch(r"\s*0+\s*", text):
        return 0
    match = _PART.fullmatch(text)
    factor = _SIZES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text!r} is no size; write a number with a unit, such as 8GiB or 500MB")
    size = float(match[1]) * factor
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
    """Seconds of `90s`, `10min`, `1h30m` or `2 days`. Raises ValueError for what is no duration."""
    parts = _PART.findall(text)
    factors = [_DURATIONS.get(unit.lower(), math.nan) for _, unit in parts]
    seconds = sum(float(number) * factor for (number, _), factor in zip(parts, factors, strict=True))
    ordered = all(one > next_one for one, next_one in itertools.pairwise(factors))
    if _PART.sub("", text) or not ordered or not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is no duration; write a number with a unit, such as 90s, 10min or 1h30m")
    return seconds


def parse_seconds(value: Any) -> Any:
    """Seconds of a duration, or of a text that is a number of them; what is no text stays as it is.

    Raises ValueError for another text.
    """
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return parse_duration(value)
