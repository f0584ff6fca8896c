"""Replaces a function by a wrapper under the same name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """`owner.name` becomes `make(what it was)`, under its name; nothing happens where it isn't there."""
    original = getattr(owner, name, None)
    if original is None:
        return
    setattr(owner, name, functools.wraps(original)(make(original)))
