"""`summarise`: the classic report's shape, phases of loops with and without ranges, and what counts as a kernel."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from hasten.doctor.profile import summarise
from hasten.doctor.profile.tables import (
    ALL,
    CALLS,
    CPU,
    GPU,
    KERNELS,
    MEMORY,
    OTHER,
    OUTSIDE,
    TENSOR,
    Node,
    ProfileRecording,
    tables_of,
)
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


def test_who_does_the_work_is_the_kernel_and_not_who_passes_it_on() -> None:
    bias = node("aten::copy_", 21, 5)
    addmm = node("aten::addmm", 12, 60, node("aten::expand", 12, 2), bias)
    linear = node("aten::linear", 5, 80, node("aten::t", 6, 2), addmm)
    view = node("aten::select", 90, 20, node("aten::as_strided", 91, 10))
    compiled = node("Torch-Compiled Region: 0/0", 120, 50, node("aten::mm", 125, 30))
    recording = ProfileRecording(
        main=[linear, view, compiled], backward=[], beside=[], device=Counter(), device_calls=Counter()
    )
    kernels = tables_of(recording).kernels
    assert {name: row[CPU] for name, row in kernels.items()} == {
        "aten::addmm": 53, "aten::mm": 30, "Torch-Compiled Region: 0/0": 20, "aten::copy_": 5,
    }  # fmt: skip


def test_ranges_make_phases_and_transforms() -> None:
    flip = Range("flip")(lambda image: image.flip(0))
    with profile(activities=[ProfilerActivity.CPU]) as result:
        for _ in range(2):
            with Range(LOADING):
                image = flip(flip(torch.ones(4, 4)))
            with Range(FORWARD), Range(FORWARD):
                image.mul(2).sum()
    summary = summarise(result)
    assert summary["Transforms"]["flip"][CALLS] == 4
    assert summary["Transforms"]["flip"][CPU] <= summary["Phases"][LOADING][CPU]
    assert {"aten::flip", "aten::mul"} <= set(summary["Kernels"])
    assert summary["Kernels"]["aten::mul"][CALLS] == 2  # not counted twice, though the range is doubled
    assert set(summary["Phases"]) == {LOADING, FORWARD, OUTSIDE}


def test_the_tables_hold_the_largest() -> None:
    result = loop(2)
    small, whole = summarise(result, top=3), summarise(result, top=999)
    assert len(small["Ops"]) == 3
    times = [row[CPU] for row in whole["Ops"].values()]
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


def node(name: str, begin: int, time: int, *children: Node, launched: tuple[tuple[str, int], ...] = ()) -> Node:
    return Node(name, "::" not in name, begin, time, list(children), list(launched))


GEMM, COPY, ADD = "sm90_xmma_gemm_bf16", "Memcpy HtoD (Pinned -> Device)", "vectorized_elementwise_kernel"


def gpu_recording() -> ProfileRecording:
    """One step whose backward runs on a thread of autograd's own."""
    loading = node(LOADING, 0, 100, node("aten::copy_", 10, 50, launched=((COPY, 400),)))
    forward = node(FORWARD, 100, 200, node("aten::mm", 110, 100, launched=((GEMM, 1000), (ADD, 50))))
    backward = node(BACKWARD, 300, 300)
    apart = node(
        "autograd::engine::evaluate_function: MmBackward0",
        310,
        200,
        node("aten::mm", 320, 100, launched=((GEMM, 2000),)),
    )
    return ProfileRecording(
        main=[loading, forward, backward], backward=[apart], beside=[node("render", 0, 90)],
        device=Counter({GEMM: 3000, COPY: 400, ADD: 50}), device_calls=Counter({GEMM: 2, COPY: 1, ADD: 1}),
    )  # fmt: skip


def test_on_a_gpu_kernels_are_what_ran_there() -> None:
    tables = tables_of(gpu_recording())
    assert tables.kinds[ALL] == {KERNELS: 3, CALLS: 4, CPU: 250, GPU: 3450}
    assert tables.kinds[TENSOR] == {KERNELS: 1, CALLS: 2, CPU: 150, GPU: 3000}
    assert tables.kinds[MEMORY] == {KERNELS: 1, CALLS: 1, CPU: 50, GPU: 400}
    assert tables.kinds[OTHER] == {KERNELS: 1, CALLS: 1, CPU: 50, GPU: 50}
    assert tables.phases[FORWARD] == {KERNELS: 2, CALLS: 2, CPU: 200, GPU: 1050}
    assert tables.phases[BACKWARD] == {KERNELS: 1, CALLS: 1, CPU: 300, GPU: 2000}
    assert tables.phases["beside the steps"][CPU] == 90
    assert next(iter(tables.ops)) == "aten::mm"
    assert list(tables.transforms) == ["render"]


def event(name: str, begin: float, end: float, thread: int = 1, device: str = "CPU", **more: Any) -> Any:
    """As torch's profiler gives it, in microseconds."""
    given: dict[str, Any] = {
        "name": name, "thread": thread, "device_type": f"DeviceType.{device}", "is_user_annotation": False, "scope": 0,
        "time_range": SimpleNamespace(start=begin, end=end), "cpu_parent": None, "cpu_children": [], "kernels": [],
        "is_async": False,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **more})


def test_a_recording_of_a_gpu_is_read() -> None:
    kernel = SimpleNamespace(name=GEMM, duration=3.0)
    launch = event("cudaLaunchKernel", 12, 14, kernels=[kernel], cpu_parent=True)
    mm = event("aten::mm", 10, 20, cpu_children=[launch], cpu_parent=True)
    launched_itself = event("aten::add", 21, 22, kernels=[SimpleNamespace(name=ADD, duration=1.0)], cpu_parent=True)
    forward = event(FORWARD, 5, 30, is_user_annotation=True, cpu_children=[mm, launched_itself])
    events = [
        forward, mm, launch, launched_itself, event("[memory]", 1, 1),
        event(GEMM, 15, 18, device="CUDA"), event(ADD, 18, 19, device="CUDA"),
        event(FORWARD, 15, 19, device="CUDA", is_user_annotation=True),
        event("render", 0, 8, thread=2, scope=7),
    ]  # fmt: skip
    result = summarise(SimpleNamespace(events=lambda: events))
    assert result["All Kernels"][ALL] == {KERNELS: 2, CALLS: 2, CPU: 11_000, GPU: 4_000}
    assert result["Phases"][FORWARD] == {KERNELS: 2, CALLS: 2, CPU: 25_000, GPU: 4_000}
    assert result["Transforms"]["render"][CPU] == 8_000
    assert "cudaLaunchKernel" not in result["Ops"]
