"""GPU readings by NVIDIA's management library (NVML); readings that the driver does not support are left out."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from hasten.observe.env import driver_version
from hasten.observe.monitor.sample import Gpu

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
