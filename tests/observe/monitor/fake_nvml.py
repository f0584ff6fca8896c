"""A stand-in for the pynvml module: GPUs whose answers, and refusals, a test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pynvml


class FakeNvml:
    """`count` GPUs. `refuse` maps a function's name to the error that it raises; `calls` counts what was asked."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.refuse: dict[str, Exception] = {}
        self.calls: dict[str, int] = {}
        self.reasons, self.is_open = 0x05, 0

    def _ask(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if name in self.refuse:
            raise self.refuse[name]

    def refuse_all(self, error: Exception) -> None:
        self.refuse = {name: error for name in self.calls if name != "nvmlShutdown"}

    def nvmlInit(self) -> None:
        self._ask("nvmlInit")
        self.is_open += 1

    def nvmlShutdown(self) -> None:
        self._ask("nvmlShutdown")
        self.is_open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if not 0 <= index < self.count:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return f"handle-{index}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return f"GPU-{handle[-1]}aaa-bbbb"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        for index in range(self.count):
            if self.nvmlDeviceGetUUID(f"handle-{index}") == uuid:
                return f"handle-{index}"
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetIndex(self, handle: str) -> int:
        self._ask("nvmlDeviceGetIndex")
        return int(handle[-1])

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._ask("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=90 + int(handle[-1]), memory=40)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        self._ask("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(used=4 * 1024**3, total=80 * 1024**3)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self._ask("nvmlDeviceGetPowerUsage")
        return 401_500

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        self._ask("nvmlDeviceGetClockInfo")
        return {1: 1980, 2: 2619}[kind]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        self._ask("nvmlDeviceGetTemperature")
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return self.reasons


def nvml_error(code: int) -> Exception:
    """The error that pynvml raises for one of NVML's codes."""
    error: Exception = pynvml.NVMLError(code)
    return error
