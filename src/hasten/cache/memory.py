"""The memory that this process may still use."""

from __future__ import annotations

import psutil

from hasten.observe.cores import memory_limits


def available_memory() -> int:
    """Bytes: what the machine has left, or less where a container or a batch system sets a limit."""
    limits = ((limit.num_bytes, limit.used()) for limit in memory_limits())
    remaining = [max(0, most - used) for most, used in limits if used is not None]
    return min([psutil.virtual_memory().available, *remaining])
