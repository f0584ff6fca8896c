"""One error from one of several processes: what each of them says of a mistake, and when."""

from __future__ import annotations

import logging
import os
import sys
import time

from hasten.distribute.world import detect_world

_GRACE_SECONDS = 10.0
"""Longer than a launcher takes to end the other ranks once one has told the error."""


def told_by_rank(error: Exception, text: str) -> str:
    """`text`, which describes the error, after a while on a rank that need not be the one to tell it.

    A mistake in the settings is found by all ranks alike: rank 0 tells it, and the launcher then ends the others. One
    that is found by another rank alone is told too, if later.
    """
    world = detect_world()
    agree = sys.modules.get("hasten.distribute.agree")
    if world.first or (agree is not None and isinstance(error, agree.Agreed)):
        return text
    time.sleep(_GRACE_SECONDS)
    return f"{text} ({world})"


def leave(code: str | int | None) -> None:
    """End a rank of several at once; a single process goes on to end as always.

    When the interpreter takes gloo's threads down, torch 2.13 aborts now and then, and a job that is through would be
    called failed.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or detect_world().size == 1:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
