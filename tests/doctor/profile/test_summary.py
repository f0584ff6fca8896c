"""`summarise`: the classic report's shape, phases of loops with and without ranges, and what counts as a kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from hasten.doctor.profile import summarise
from hasten.doctor.profile.tables import ALL, CALLS, CPU, GPU, KERNELS, MEMORY, OTHER, OUTSIDE, TENSOR, TOTAL
from hasten.observe.ranges import BACKWARD, FORWARD, LOADING, OPTIMIZER, Range

COLUMNS = {"# Kernels", "# Calls", "CPU Time (ns)", "GPU Time (ns)"}


def loop(steps: int) -> Any:
    """Somebody's plain loop under the profiler."""
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = DataLoader(TensorDataset(torch.randn(4 * steps, 1, 8, 8), torch.zeros(4 * steps).long()), batch_size=4)
    with profile(activities=[ProfilerActivity.CPU]) as result:
        for image, label in data:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(image), label).backward()
            optimizer.step()
    return result


def test_the_classic_shape_of_a_plain_loop() -> None:
    result = summarise(loop(3))
    kinds = result["All Kernels"]
    assert list(kinds) == [ALL, TENSOR, MEMORY, OTHER] == [
        "All kernels", "Kernels using Tensor Cores", "Memory kernels", "All other kernels",
    ]  # fmt: skip
    assert all(set(row) == COLUMNS for row in kinds.values())
    for column in COLUMNS:
        assert kinds[ALL][column] == sum(kinds[kind][column] for kind in (TENSOR, MEMORY, OTHER))
        assert all(type(row[column]) is int for row in kinds.values())
    assert kinds[ALL][CPU] > 0
    assert kinds[ALL][GPU] == 0
    assert {LOADING, BACKWARD, OPTIMIZER, OUTSIDE} <= set(result["Phases"])
    assert FORWARD not in result["Phases"]  # nothing marks it here
    assert sum(row[CPU] for row in result["Phases"].values()) == pytest.approx(result["Wall"][CPU], abs=10)


def test_what_is_a_kernel_of_a_cpu() -> None:
    kernels = summarise(loop(3), top=99)["Kernels"]
    assert kernels["aten::mkldnn_convolution"][CALLS] == 3
    # What only lays memory out is none, nor what autograd calls functions by.
    assert not {"aten::as_strided", "aten::empty", "aten::t"} & set(kernels)
    assert not any("Backward0" in name or "autograd" in name for name in kernels)


def test_ranges_make_phases_and_transforms() -> None:
    flip = Range("flip")(lambda image: image.flip(0))
    with profile(activities=[ProfilerActivity.CPU]) as result:
        for _ in range(2):
            with Range(LOADING):
                image = flip(flip(torch.ones(4, 4)))
            with Range(FORWARD), Range(FORWARD):
                image.mul(2).sum()
    summary = summarise(result, top=99)
    assert summary["Transforms"]["flip"][CALLS] == 4
    assert summary["Transforms"]["flip"][TOTAL] <= summary["Phases"][LOADING][CPU]
    assert {"aten::flip", "aten::mul"} <= set(summary["Ops"])
    assert summary["Phases"][FORWARD][CALLS] == 2  # not counted twice, though the range is doubled
    assert set(summary["Phases"]) == {LOADING, FORWARD, OUTSIDE}


def test_the_tables_hold_the_largest() -> None:
    result = loop(2)
    small, whole = summarise(result, top=3), summarise(result, top=999)
    assert len(small["Ops"]) == 3
    times = [row[TOTAL] for row in whole["Ops"].values()]
    assert times == sorted(times, reverse=True)
    assert list(small["Ops"]) == list(whole["Ops"])[:3]
    assert small["All Kernels"] == whole["All Kernels"]


def test_a_profile_with_nothing_in_it_is_refused() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as result:
        pass
    with pytest.raises(ValueError, match="holds nothing"):
        summarise(result)
    with pytest.raises(ValueError, match="has not been taken"):
        summarise(profile(activities=[ProfilerActivity.CPU]))


GEMM, COPY = "sm90_xmma_gemm_bf16", "Memcpy HtoD (Pinned -> Device)"


def event(name: str, cpu: float, gpu: float = 0, *, device: str = "CPU", inside: Any = None, **more: Any) -> Any:
    """As torch's profiler gives it, in microseconds; `cpu` and `gpu` are with all inside."""
    given: dict[str, Any] = {
        "name": name, "key": name, "thread": 1, "device_type": f"DeviceType.{device}", "is_user_annotation": False,
        "scope": 0, "time_range": SimpleNamespace(start=0.0, end=cpu), "cpu_parent": inside, "kernels": [],
        "is_async": False, "count": 1, "cpu_time_total": cpu, "self_cpu_time_total": cpu, "device_time_total": gpu,
        "self_device_time_total": gpu if device == "CUDA" else 0.0,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **more})


def test_on_a_gpu_kernels_are_what_ran_there_and_autograds_thread_is_the_backward() -> None:
    step = event("step", 500.0, is_user_annotation=True)
    forward = event(FORWARD, 200.0, 1000.0, inside=step, is_user_annotation=True)
    launch = event("aten::mm", 100.0, 1000.0, inside=forward, kernels=[SimpleNamespace(name=GEMM)])
    backward = event(BACKWARD, 250.0, inside=step, is_user_annotation=True)
    apart = event("autograd::engine::evaluate_function: MmBackward0", 90.0, 2000.0, thread=2)
    device = [event(GEMM, 0.0, 3000.0, device="CUDA", count=2), event(COPY, 0.0, 400.0, device="CUDA")]
    marked = event(FORWARD, 0.0, 1000.0, device="CUDA", is_user_annotation=True)
    events = [step, forward, launch, backward, apart, *device, marked, event("[memory]", 0.0)]
    result = summarise(SimpleNamespace(events=lambda: events, key_averages=lambda: events))
    assert result["All Kernels"][ALL] == {KERNELS: 2, CALLS: 3, CPU: 100_000, GPU: 3_400_000}
    assert result["All Kernels"][TENSOR] == {KERNELS: 1, CALLS: 2, CPU: 100_000, GPU: 3_000_000}
    assert result["All Kernels"][MEMORY] == {KERNELS: 1, CALLS: 1, CPU: 0, GPU: 400_000}
    assert result["Phases"][FORWARD] == {CALLS: 1, CPU: 200_000, GPU: 1_000_000}
    assert result["Phases"][BACKWARD] == {CALLS: 1, CPU: 250_000, GPU: 2_000_000}
    assert result["Phases"][OUTSIDE][CPU] == 50_000
