"""Matches names with the `fnmatch` patterns of settings; texts and lists for messages and files."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

SHOWN = 3
"""How many of one kind a message names."""


def fitting(names: Sequence[str], pattern: str, *, at: str) -> list[str]:
    """The names that fit `pattern`; case counts. `at` names the setting in errors.

    Raises ValueError, with names that are near, where none fits.
    """
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if matches:
        return matches
    parts = (name.split(".") for name in names)
    beginnings = dict.fromkeys(".".join(each[:count]) for each in parts for count in range(1, len(each) + 1))
    similar = difflib.get_close_matches(pattern.strip("*."), beginnings, n=SHOWN)
    hint = f"near are {', '.join(similar)}" if similar else f"there are {first_few(names)}"
    raise ValueError(f"{at}: {pattern!r} fits no parameter of the network; {hint}")


def first_few(names: Iterable[object], limit: int = SHOWN) -> str:
    """`a, b, c and 5 more`."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:limit]) + (f" and {len(shown) - limit} more" if len(shown) > limit else "")


def listing(kinds: Iterable[Sequence[str]], heading: str) -> str:
    """Problems below a heading, of each kind the first few and how many more there are; a single one as it is."""
    groups = [list(problems) for problems in kinds if problems]
    if len(groups) == 1 and len(groups[0]) == 1:
        return groups[0][0]
    lines = [f"{heading}:"]
    for problems in groups:
        lines += problems[:SHOWN]
        if len(problems) > SHOWN:
            lines.append(f"and {len(problems) - SHOWN} more like the last")
    return "\n  ".join(lines)


def as_lists(value: Any) -> Any:
    """A setting as YAML and JSON hold it: tuples, at any depth, as lists."""
    if isinstance(value, dict):
        return {key: as_lists(each) for key, each in value.items()}
    return [as_lists(each) for each in value] if isinstance(value, list | tuple) else value
