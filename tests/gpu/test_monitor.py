"""The monitor over the real driver."""

from __future__ import annotations

import time

import pytest
import torch

from hasten.observe.monitor.probes import GpuProbe


def work(seconds: float) -> None:
    """Keep the device busy."""
    matrix = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            matrix = (matrix @ matrix).clamp_(-1, 1)
        torch.cuda.synchronize()


def test_the_driver_tells_of_a_device_at_work() -> None:
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    probe = GpuProbe((uuid,))
    assert probe.note == ""
    held = torch.zeros(512 * 2**20, dtype=torch.uint8, device="cuda")
    probe.read()
    work(2.0)
    (gpu,) = probe.read()
    probe.close()
    assert gpu.util is not None
    assert gpu.util > 50
    assert gpu.used is not None
    assert gpu.total is not None
    assert held.numel() / 2**20 <= gpu.used <= gpu.total
    total = torch.cuda.get_device_properties(0).total_memory / 2**20
    assert gpu.total == pytest.approx(total, rel=0.05)
    assert gpu.throttle is not None
    for value in (gpu.power_w, gpu.sm_mhz, gpu.mem_mhz, gpu.temperature_c):
        assert value is None or value > 0
