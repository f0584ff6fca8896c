"""Reporting a user's mistake once from several processes: which rank prints it, and when."""

from __future__ import annotations

import logging
import os
import sys
import time

from hasten.distribute.world import detect_world

_GRACE_SECONDS = 10.0
"""Longer than a launcher takes to end the other ranks once one has reported the error."""


def text_for_rank(error: Exception, text: str) -> str:
    """Return `text`, which describes the error; on ranks that need not report it, only after a delay.

    All ranks detect a mistake in the settings: rank 0 reports it, and the launcher then ends the others. A mistake that
    only another rank detects is reported too, but later.
    """
    world = detect_world()
    consensus = sys.modules.get("hasten.distribute.consensus")
    if world.first or (consensus is not None and isinstance(error, consensus.JobError)):
        return text
    time.sleep(_GRACE_SECONDS)
    return f"{text} ({world})"


def leave(code: str | int | None) -> None:
    """Exit a rank of several immediately; a single process exits as usual.

    When the interpreter takes gloo's threads down, torch 2.13 aborts now and then, and a finished job would
    count as failed.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or detect_world().size == 1:
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
