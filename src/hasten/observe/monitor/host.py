"""Readings of the host and this process from the operating system, at low cost: they are taken every second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from hasten.observe.cores import memory_limits
from hasten.observe.monitor.sample import Host

MIB = 1024**2
SHORTEST = 0.02
"""Seconds; over less, the system's ticks of 10 ms make no rate."""
_NOT_WIRES = ("lo", "veth", "docker", "br-", "virbr", "ifb", "cni", "flannel", "cali", "dummy")
"""Each byte through one of these is counted by what lies below it as well."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Totals since the machine started, whose differences are rates; in bytes. None is unknown."""

    cpu: tuple[float, float] | None = None
    """Busy time and all time, in any unit."""
    memory: tuple[int, int] | None = None
    """Total and available."""
    rss: int | None = None
    disk: tuple[int, int] | None = None
    """Read and written."""
    net: tuple[int, int] | None = None
    """Received and sent."""


class HostProbe:
    """Reads the host; the first reading has no rates."""

    def __init__(
        self, *, counters: Callable[[], Counters] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._counters = counters or counters_now
        self._clock = clock
        self._limit = min(memory_limits(), key=lambda limit: limit.num_bytes, default=None)
        self._before = Counters()
        self._mark: tuple[float, float] | None = None

    def read(self) -> Host:
        now, own_cpu = self._clock(), time.process_time()
        counters, before = self._counters(), self._before
        wall, used_cpu = (now - self._mark[0], own_cpu - self._mark[1]) if self._mark else (0.0, 0.0)
        if wall < SHORTEST and self._mark is not None:
            wall, before = 0.0, Counters()
        else:
            self._before, self._mark = counters, (now, own_cpu)
        read, written = _rates(before.disk, counters.disk, wall)
        received, sent = _rates(before.net, counters.net, wall)
        used, total = self._memory(counters)
        return Host(
            cpu=_busy(before.cpu, counters.cpu),
            own_cores=round(used_cpu / wall, 3) if wall > 0 else None,
            ram_used=used,
            ram_total=total,
            rss=None if counters.rss is None else round(counters.rss / MIB, 1),
            disk_read=read,
            disk_write=written,
            net_in=received,
            net_out=sent,
            load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        )

    def _memory(self, counters: Counters) -> tuple[float | None, float | None]:
        """Used and total MiB, of the container where that leaves less."""
        if counters.memory is None:
            return None, None
        total, available = counters.memory
        if self._limit is not None and self._limit.num_bytes >= total:
            self._limit = None
        limited = None if self._limit is None else self._limit.used()
        if self._limit is not None and limited is not None and self._limit.num_bytes - limited < available:
            return round(limited / MIB, 1), round(self._limit.num_bytes / MIB, 1)
        return round((total - available) / MIB, 1), round(total / MIB, 1)


def _rates(before: tuple[int, int] | None, now: tuple[int, int] | None, wall: float) -> tuple[float | None, ...]:
    if before is None or now is None or wall <= 0:
        return None, None
    # A counter that fell belongs to a device that went away.
    return tuple(round(max(0, later - earlier) / wall, 1) for earlier, later in zip(before, now, strict=True))


def _busy(before: tuple[float, float] | None, now: tuple[float, float] | None) -> float | None:
    if before is None or now is None or now[1] <= before[1]:
        return None
    return round(min(100.0, max(0.0, 100 * (now[0] - before[0]) / (now[1] - before[1]))), 1)


def counters_now() -> Counters:
    """Counters by psutil; a field that the system does not have is None."""
    times = psutil.cpu_times()
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    idle = times.idle + getattr(times, "iowait", 0.0)
    memory, disk = psutil.virtual_memory(), psutil.disk_io_counters()
    wires = [wire for name, wire in psutil.net_io_counters(pernic=True).items() if not name.startswith(_NOT_WIRES)]
    return Counters(
        cpu=(total - idle, total),
        memory=(memory.total, memory.available),
        rss=psutil.Process().memory_info().rss,
        disk=None if disk is None else (disk.read_bytes, disk.write_bytes),
        net=(sum(wire.bytes_recv for wire in wires), sum(wire.bytes_sent for wire in wires)) if wires else None,
    )
