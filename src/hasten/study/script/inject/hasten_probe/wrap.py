"""Replaces a function by a wrapper under the same name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .session import Session


def around(session: Session, owner: Any, name: str, call: Callable[..., Any]) -> None:
    """`owner.name` becomes `call(session, original, *args, **kwargs)` wherever the session records.

    Not within code that is being compiled. Nothing happens where the owner has no such name.
    """
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not session.live():
            return original(*args, **kwargs)
        return call(session, original, *args, **kwargs)

    setattr(owner, name, wrapper)
