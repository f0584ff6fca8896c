"""Checked access to JSON values of unknown origin (the requested type, or nothing); times and tables as text."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterable, Sequence
from functools import partial
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


def aligned(rows: Iterable[Sequence[str]], right: Collection[int], width: float = math.inf) -> list[str]:
    """Lines with aligned columns, those in `right` to the right. Beyond `width`, names in the first row are broken."""
    names, *body = rows
    widths = [max(map(len, column)) for column in zip(names, *body, strict=True)]
    if body and sum(widths) + 2 * len(widths) - 2 > width:
        within = [max(6, *map(len, column)) for column in zip(*body, strict=True)]
        split = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
        broken = [*map(split, names, within)]
        depth = max(map(len, broken))
        return aligned([*zip(*([""] * (depth - len(each)) + each for each in broken), strict=True), *body], right)
    sides = [f"{'>' if column in right else '<'}{width}" for column, width in enumerate(widths)]
    return ["  ".join(map(format, row, sides)).rstrip() for row in [names, *body]]
