"""Matches names with the `fnmatch` patterns of settings, and lists the first few of them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

_SHOWN = 3


def fitting(names: Sequence[str], pattern: str, *, at: str) -> list[str]:
    """The names that fit `pattern`; case counts. `at` names the setting in errors.

    Raises ValueError, with names that are near, where none fits.
    """
    matches = [name for name in names if fnmatchcase(name, pattern)]
    if matches:
        return matches
    parts = (name.split(".") for name in names)
    beginnings = dict.fromkeys(".".join(each[:count]) for each in parts for count in range(1, len(each) + 1))
    similar = difflib.get_close_matches(pattern.strip("*."), beginnings, n=_SHOWN)
    hint = f"near are {', '.join(similar)}" if similar else f"there are {first_few(names)}"
    raise ValueError(f"{at}: {pattern!r} fits no parameter of the network; {hint}")


def first_few(names: Iterable[object], limit: int = 3) -> str:
    """`a, b, c and 5 more`."""
    shown = [str(name) for name in names]
    return ", ".join(shown[:limit]) + (f" and {len(shown) - limit} more" if len(shown) > limit else "")
