"""Readings of the host and this process by the system, and of GPUs by NVIDIA's management library (NVML).

They are taken every second, at low cost. What the driver does not support is left out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import psutil

from hasten.observe.cores import memory_limits
from hasten.observe.env import driver_version
from hasten.observe.monitor.recording import Gpu, Host

MIB = 1024**2
_REASONS = {
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
"""NVML's bits for what lowers the clocks. An idle GPU and clocks set by a user are no throttling."""


class HostProbe:
    """Reads the host; the first reading has no rates."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._first = True

    def read(self) -> Host:
        # Both are means since the call before.
        cpu, own = psutil.cpu_percent(), round(self._process.cpu_percent() / 100, 3)
        rates = {} if self._first else {"cpu": cpu, "own_cores": own}
        self._first = False
        memory = psutil.virtual_memory()
        whole = (memory.total, memory.total - memory.available)
        limit, in_use = min(memory_limits(), default=whole)  # of the container, where that leaves less
        total, used = (limit, in_use) if limit - in_use < memory.available else whole
        return Host(
            ram_used=round(used / MIB, 1),
            ram_total=round(total / MIB, 1),
            rss=round(self._process.memory_info().rss / MIB, 1),
            load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            **rates,
        )


class GpuProbe:
    """GPUs of this machine: none without a driver. `note` says why none of those there is recorded.

    gpus: which, by their number, which is NVML's by slot, or by UUID, the same as CUDA's; None takes all; () asks for
    none and never loads the library.
    """

    def __init__(self, gpus: Sequence[int | str] | None = None, *, module: Any = None) -> None:
        self.note = ""
        self._devices: list[tuple[int, Any]] = []
        self._nvml: Any = None
        if (gpus is not None and not gpus) or (module is None and driver_version() is None):
            return
        try:
            nvml = module if module is not None else importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
            names = range(nvml.nvmlDeviceGetCount()) if gpus is None else gpus
            handles = [handle for name in names if (handle := _by_name(nvml, name)) is not None]
            self._devices = [(_number(nvml, handle, place), handle) for place, handle in enumerate(handles)]
        except Exception as error:  # ImportError, NVMLError of any kind, OSError of a broken library
            self.note = f"no GPU is recorded: {error or type(error).__name__}"
        if not self._devices and not self.note:
            self.note = "no GPU is recorded: none of those asked for is here"

    def read(self) -> tuple[Gpu, ...]:
        """One reading of each; a GPU that was lost has empty fields, and `note` names it."""
        readings = tuple(_read(self._nvml, index, handle) for index, handle in self._devices)
        lost = [f"GPU {gpu.index} does not answer" for gpu in readings if gpu == Gpu(index=gpu.index)]
        if lost:
            self.note = "; ".join(lost)
        return readings

    def close(self) -> None:
        """Let go of the library; safe to call twice."""
        nvml, self._nvml, self._devices = self._nvml, None, []
        if nvml is not None:
            with suppress(Exception):  # the driver may have gone before us
                nvml.nvmlShutdown()


def _read(nvml: Any, index: int, handle: Any) -> Gpu:
    fields: dict[str, Any] = {}
    for reading in _READINGS:
        with suppress(Exception):  # not supported, not permitted, or lost
            fields |= reading(nvml, handle)
    return Gpu(index=index, **fields)


def _memory(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"used": round(memory.used / MIB, 1), "total": round(memory.total / MIB, 1)}


def _throttle(nvml: Any, handle: Any) -> dict[str, Any]:
    bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle": tuple(name for bit, name in _REASONS.items() if bits & bit)}


_READINGS: tuple[Callable[[Any, Any], dict[str, Any]], ...] = (
    lambda nvml, gpu: {"util": float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)},
    _memory,
    lambda nvml, gpu: {"power_w": nvml.nvmlDeviceGetPowerUsage(gpu) / 1000},
    lambda nvml, gpu: {"sm_mhz": float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))},
    lambda nvml, gpu: {"mem_mhz": float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM))},
    lambda nvml, gpu: {"temperature_c": float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))},
    _throttle,
)
"""Fields of a Gpu, from the library and a handle."""


def _by_name(nvml: Any, name: int | str) -> Any:
    """A handle by number or UUID; None if there is no such device."""
    find = nvml.nvmlDeviceGetHandleByUUID if isinstance(name, str) else nvml.nvmlDeviceGetHandleByIndex
    try:
        return find(name)
    except nvml.NVMLError:
        return None


def _number(nvml: Any, handle: Any, otherwise: int) -> int:
    try:
        return int(nvml.nvmlDeviceGetIndex(handle))
    except Exception:  # a slice of a GPU (MIG) has no number
        return otherwise
