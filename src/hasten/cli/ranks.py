"""One error from one of several processes: what each of them says of a mistake, and when."""

from __future__ import annotations

import sys
import time

from hasten.distribute.world import detect_world

_GRACE_SECONDS = 10.0
"""Longer than a launcher takes to end the other ranks once one has told the error."""


def told_by_rank(error: ValueError) -> str:
    """The error's text, after a while on a rank that need not be the one to tell it.

    A mistake in the settings is found by all ranks alike: rank 0 tells it, and the launcher then ends the others. One
    that is found by another rank alone is told too, if later.
    """
    world = detect_world()
    agree = sys.modules.get("hasten.distribute.agree")
    if world.first or (agree is not None and isinstance(error, agree.Agreed)):
        return str(error)
    time.sleep(_GRACE_SECONDS)
    return f"{error} ({world})"
