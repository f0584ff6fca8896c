"""Seconds a batch of an arm in its steady state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any


def seconds_a_batch(arm: Callable[[], Iterator[Any]], batches: int, warmup: int = 2) -> float:
    """Start an arm, draw `warmup` batches unrecorded, time the next `batches`, end its workers; seconds a batch.

    Workers live only for this call: those of an arm that is not being timed would go on filling their queues, and slow
    down the arm that is. Nothing happens between two batches, so that what is measured is the rate of production; the
    batches that wait in a queue when the clock starts are about as many as when it stops.
    """
    result = arm()
    try:
        for _ in range(warmup):
            next(result)
        start = time.perf_counter()
        for _ in range(batches):
            next(result)
        return (time.perf_counter() - start) / batches
    finally:
        close = getattr(result, "close", None)
        if close is not None:
            close()
