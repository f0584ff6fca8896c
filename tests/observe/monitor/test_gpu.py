"""GPUs through a made-up driver: which are read, what they tell, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence

import pynvml
import pytest

from hasten.observe.monitor.probes import GpuProbe
from hasten.observe.monitor.recording import Gpu
from tests.observe.monitor.fake_nvml import FakeNvml, nvml_error


def indices(nvml: FakeNvml, gpus: Sequence[int | str] | None = None) -> list[int]:
    return [gpu.index for gpu in GpuProbe(gpus, module=nvml).read()]


def test_a_gpu_tells_everything() -> None:
    nvml = FakeNvml()
    probe = GpuProbe(module=nvml)
    assert probe.read() == (
        Gpu(
            index=0,
            util=90.0,
            used=4096.0,
            total=81920.0,
            power_w=401.5,
            sm_mhz=1980.0,
            mem_mhz=2619.0,
            temperature_c=61.0,
            throttle=("power_cap",),
        ),
    )
    assert probe.note == ""
    probe.close()
    probe.close()
    assert nvml.is_open == 0


@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_UNKNOWN])
def test_an_error_leaves_one_empty_field(code: int) -> None:
    nvml = FakeNvml()
    probe = GpuProbe(module=nvml)
    nvml.refuse["nvmlDeviceGetPowerUsage"] = nvml_error(code)
    gpu = probe.read()[0]
    assert (gpu.power_w, gpu.used, gpu.temperature_c, probe.note) == (None, 4096.0, 61.0, "")
    nvml.refuse.clear()
    assert probe.read()[0].power_w == 401.5


def test_a_gpu_that_is_lost_is_told_and_may_come_back() -> None:
    nvml = FakeNvml(2)
    probe = GpuProbe(module=nvml)
    probe.read()
    nvml.refuse_all(nvml_error(pynvml.NVML_ERROR_GPU_IS_LOST))
    assert probe.read() == (Gpu(index=0), Gpu(index=1))
    assert "GPU 0 does not answer" in probe.note
    assert "GPU 1 does not answer" in probe.note
    nvml.refuse.clear()
    assert [gpu.util for gpu in probe.read()] == [90.0, 91.0]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (nvml_error(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH), "mismatch"),
        (OSError("libnvidia-ml.so.1: wrong ELF class"), "wrong ELF class"),
        (ImportError("No module named 'pynvml'"), "pynvml"),
    ],
)
def test_no_driver_is_a_note(error: Exception, words: str) -> None:
    nvml = FakeNvml()
    nvml.refuse["nvmlInit"] = error
    probe = GpuProbe(module=nvml)
    assert probe.read() == ()
    assert words in probe.note
    probe.close()
    assert "nvmlShutdown" not in nvml.calls


def test_which_gpus() -> None:
    nvml = FakeNvml(4)
    assert indices(nvml) == [0, 1, 2, 3]
    assert indices(nvml, [1, 3]) == [1, 3]
    assert indices(nvml, ["GPU-2aaa-bbbb", "GPU-0aaa-bbbb", "GPU-9"]) == [2, 0]
    missing = GpuProbe([7], module=nvml)
    assert missing.read() == ()
    assert "none of those asked for" in missing.note
