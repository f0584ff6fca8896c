"""GPU readings by NVIDIA's management library (NVML); readings that the driver does not support are left out."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
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
_NEVER = ("NVMLError_NotSupported", "NVMLError_FunctionNotFound", "NVMLError_NoPermission")
"""Errors after which a reading is not tried again."""

KeyRead = Callable[[Any, Any], dict[str, Any]]
"""Fields of a Gpu, from the library and a handle."""


class GpuProbe:
    """The GPUs of this process: none on a machine without a driver. `note` says why none of those there is recorded.

    gpus: which, by their number among those that CUDA_VISIBLE_DEVICES leaves, or by UUID; None: that of LOCAL_RANK
    where there are several ranks, else all that are visible; () asks for none and never loads the library.
    CUDA numbers unlike GPUs by speed and NVML by slot: there set CUDA_DEVICE_ORDER=PCI_BUS_ID or give UUIDs.
    """

    def __init__(
        self,
        gpus: Sequence[int | str] | None = None,
        *,
        module: Any = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.note = ""
        self._devices: list[_Device] = []
        self._nvml: Any = None
        if (gpus is not None and not gpus) or (module is None and driver_version() is None):
            return
        try:
            nvml = module if module is not None else importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._nvml = nvml
            self._devices = [_Device(nvml, *device) for device in _select_gpus(nvml, gpus, environ)]
        except Exception as error:  # ImportError, NVMLError of any kind, OSError of a broken library
            self.note = f"no GPU is recorded: {_reason(error)}"
        if not self._devices and not self.note:
            self.note = "no GPU is recorded: none is visible to this process"

    def read(self) -> tuple[Gpu, ...]:
        """One reading of each; a GPU that was lost has empty fields, and `note` names it."""
        readings = tuple(device.read() for device in self._devices)
        lost = [device.lost for device in self._devices if device.lost]
        if lost:
            self.note = "; ".join(lost)
        return readings

    def close(self) -> None:
        """Let go of the library; safe to call twice."""
        nvml, self._nvml = self._nvml, None
        devices, self._devices = self._devices, []
        for device in devices:
            device.close()
        if nvml is not None:
            with suppress(Exception):  # the driver may have gone before us
                nvml.nvmlShutdown()


class _Device:
    """One GPU, and the readings that it supports."""

    def __init__(self, nvml: Any, index: int, handle: Any) -> None:
        self.index, self.lost = index, ""
        self._nvml, self._handle = nvml, handle
        self._tensor: _TensorUse | None = None
        self._readings = list(_READINGS)
        with suppress(Exception):  # GPUs before Hopper, drivers before 520, a library without the calls
            self._tensor = _TensorUse(nvml, handle)
            self._readings.append(self._tensor)

    def read(self) -> Gpu:
        fields: dict[str, Any] = {}
        errors: list[Exception] = []
        for reading in tuple(self._readings):
            try:
                fields |= reading(self._nvml, self._handle)
            except Exception as error:
                errors.append(error)
                if type(error).__name__ in _NEVER or isinstance(error, AttributeError):
                    self._readings.remove(reading)
        if errors and not fields and self._readings:
            self.lost = f"GPU {self.index} does not answer: {_reason(errors[0])}"
        elif fields:
            self.lost = ""
        return Gpu(index=self.index, **fields)

    def close(self) -> None:
        if self._tensor is not None:
            self._tensor.close()


def _memory(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"used": round(memory.used / MIB, 1), "total": round(memory.total / MIB, 1)}


def _throttle(nvml: Any, handle: Any) -> dict[str, Any]:
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (AttributeError, nvml.NVMLError_FunctionNotFound):  # a driver before 535 has the old name only
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle": tuple(name for bit, name in _REASONS.items() if bits & bit)}


_READINGS: tuple[KeyRead, ...] = (
    lambda nvml, gpu: {"util": float(nvml.nvmlDeviceGetUtilizationRates(gpu).gpu)},
    _memory,
    lambda nvml, gpu: {"power_w": nvml.nvmlDeviceGetPowerUsage(gpu) / 1000},
    lambda nvml, gpu: {"sm_mhz": float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM))},
    lambda nvml, gpu: {"mem_mhz": float(nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM))},
    lambda nvml, gpu: {"temperature_c": float(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))},
    _throttle,
)


class _TensorUse:
    """Use of the tensor cores between one reading and the next, by NVML's GPM counters."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            raise ValueError("no GPM counters")
        self._nvml = nvml
        self._samples = [nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()]
        nvml.nvmlGpmSampleGet(handle, self._samples[0])
        self._question = nvml.c_nvmlGpmMetricsGet_t()
        self._question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._question.numMetrics = 1

    def __call__(self, nvml: Any, handle: Any) -> dict[str, Any]:
        old, new = self._samples
        nvml.nvmlGpmSampleGet(handle, new)
        self._samples = [new, old]
        query = self._question
        query.sample1, query.sample2 = old, new
        query.metrics[0].metricId = nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        nvml.nvmlGpmMetricsGet(query)
        answer = query.metrics[0]
        # NaN where the two samples lie too close together.
        sound = answer.nvmlReturn == 0 and 0 <= answer.value <= 100
        return {"tensor": round(float(answer.value), 2)} if sound else {}

    def close(self) -> None:
        for sample in self._samples:
            with suppress(Exception):  # lost with its GPU
                self._nvml.nvmlGpmSampleFree(sample)


def _select_gpus(nvml: Any, gpus: Sequence[int | str] | None, environ: Mapping[str, str]) -> list[tuple[int, Any]]:
    """(number, handle) of each GPU to record; a requested GPU that does not exist is left out."""
    visible = _visible(nvml, environ.get("CUDA_VISIBLE_DEVICES"))
    if gpus is None:
        local = environ.get("LOCAL_RANK", "")
        alone = environ.get("WORLD_SIZE", "1") in ("", "0", "1")
        local_index = int(local) if local.isdecimal() and not alone else None
        # Where each rank was given one GPU only, that one is its first.
        gpus = range(len(visible)) if local_index is None else (local_index if local_index < len(visible) else 0,)
    selected: list[tuple[int, Any]] = []
    for gpu in gpus:
        if isinstance(gpu, int):
            handle = visible[gpu] if 0 <= gpu < len(visible) else None
        else:
            handle = _by_uuid(nvml, gpu if gpu.startswith(("GPU-", "MIG-")) else f"GPU-{gpu}")
        if handle is not None:
            selected.append((_number(nvml, handle, len(selected)), handle))
    return selected


def _visible(nvml: Any, names: str | None) -> list[Any]:
    """Handles in CUDA's order; like CUDA, nothing after the first name that means no device."""
    count = nvml.nvmlDeviceGetCount()
    if names is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
    handles = []
    for name in (name.strip() for name in names.split(",")):
        if name.isdecimal():
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if int(name) < count else None
        else:
            handle = _by_uuid(nvml, name) if name.startswith(("GPU-", "MIG-")) else None
        if handle is None:
            break
        handles.append(handle)
    return handles


def _by_uuid(nvml: Any, uuid: str) -> Any:
    """A handle by UUID or the beginning of one, as CUDA allows."""
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        pass
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        candidate = nvml.nvmlDeviceGetUUID(handle)
        if (candidate.decode() if isinstance(candidate, bytes) else candidate).startswith(uuid):
            return handle
    return None


def _number(nvml: Any, handle: Any, otherwise: int) -> int:
    try:
        return int(nvml.nvmlDeviceGetIndex(handle))
    except Exception:  # a slice of a GPU (MIG) has no number
        return otherwise


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    if type(error).__name__ in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
        return "no NVIDIA driver was found"
    return "pynvml is missing (pip install nvidia-ml-py)" if isinstance(error, ImportError) else text
