"""Readings of the host and this process from the operating system, at low cost: they are taken every second."""

from __future__ import annotations

import os
import time

import psutil

from hasten.observe.cores import memory_limits
from hasten.observe.monitor.sample import Host

MIB = 1024**2
_NOT_WIRES = ("lo", "veth", "docker", "br-", "virbr", "ifb", "cni", "flannel", "cali", "dummy")
"""Each byte through one of these is counted by what lies below it as well."""


class HostProbe:
    """Reads the host; the first reading has no rates."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._limit = min(memory_limits(), key=lambda limit: limit.num_bytes, default=None)
        self._mark: tuple[float, dict[str, int]] | None = None

    def read(self) -> Host:
        now, totals = time.monotonic(), _totals()
        rates: dict[str, float] = {}
        # Both are means since the call before.
        cpu, own = psutil.cpu_percent(), self._process.cpu_percent()
        if self._mark is not None and now > self._mark[0]:
            wall, before = now - self._mark[0], self._mark[1]
            # A counter that fell belongs to a device that went away.
            rates = {name: round(max(0, totals[name] - before.get(name, 0)) / wall, 1) for name in totals}
            rates |= {"cpu": cpu, "own_cores": round(own / 100, 3)}
        self._mark = now, totals
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


def _totals() -> dict[str, int]:
    """Bytes since the machine started, by the rate that their differences make."""
    disk = psutil.disk_io_counters()
    wires = [wire for name, wire in psutil.net_io_counters(pernic=True).items() if not name.startswith(_NOT_WIRES)]
    totals = {} if disk is None else {"disk_read": disk.read_bytes, "disk_write": disk.write_bytes}
    if wires:
        totals |= {"net_in": sum(wire.bytes_recv for wire in wires), "net_out": sum(wire.bytes_sent for wire in wires)}
    return totals
