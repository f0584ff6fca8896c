"""Readings of the host and this process from the operating system, at low cost: they are taken every second."""

from __future__ import annotations

import os

import psutil

from hasten.observe.cores import memory_limits
from hasten.observe.monitor.sample import Host

MIB = 1024**2


class HostProbe:
    """Reads the host; the first reading has no rates."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._limit = min(memory_limits(), key=lambda limit: limit.num_bytes, default=None)
        self._first = True

    def read(self) -> Host:
        # Both are means since the call before.
        cpu, own = psutil.cpu_percent(), round(self._process.cpu_percent() / 100, 3)
        rates = {} if self._first else {"cpu": cpu, "own_cores": own}
        self._first = False
        used, total = self._memory()
        return Host(
            ram_used=used,
            ram_total=total,
            rss=round(self._process.memory_info().rss / MIB, 1),
            load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            **rates,
        )

    def _memory(self) -> tuple[float, float]:
        """Used and total MiB, of the container where that leaves less."""
        memory = psutil.virtual_memory()
        used, total = memory.total - memory.available, memory.total
        limited = None if self._limit is None else self._limit.used()
        if self._limit is not None and limited is not None and self._limit.num_bytes - limited < memory.available:
            used, total = limited, self._limit.num_bytes
        return round(used / MIB, 1), round(total / MIB, 1)
