"""Where the GPU's time goes in a step: every kernel of torch's profiler, by what it costs.

Steps are those of `steps`, with the same networks and batches, on a fixed batch. Figures are of one step, the mean of
three: milliseconds that kernels ran, how many were launched, and the kernels that took the most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpus.nets import Net, net_named
from benchmarks.gpus.rungs import RUNGS, make_rung
from benchmarks.gpus.sheet import Sheet
from benchmarks.gpus.steps import batch_size_for

PROFILED = ("eager bf16", "hasten")
STEPS = 3
KERNELS = 40
"""Of a step that are listed."""


def measure(sheet: Sheet) -> None:
    sheet.tell("about", __doc__)
    for name in ("mlperf", "spleen"):
        net = net_named(name, quick=sheet.quick)
        for rung in PROFILED:
            sheet.attempt(f"{name}/{rung}", 8, lambda name=name, net=net, rung=rung: one(sheet, name, net, rung))  # type: ignore[misc]


def one(sheet: Sheet, name: str, net: Net, rung_name: str) -> None:
    rung = next(rung for rung in RUNGS if rung.name == rung_name)
    ready = make_rung(rung, net, batch_size_for(net, sheet.device), sheet.device)
    rows = kernels_of(ready.step, sheet.device)
    what = f"{name}/{rung_name}"
    sheet.keep(
        {f"{what}, kernels_ms": [sum(row[1] for row in rows)], f"{what}, launches": [sum(row[2] for row in rows)]}
    )
    sheet.tell(f"{what}: kernel, ms, launches", rows[:KERNELS])


def kernels_of(step: Callable[[], object], device: torch.device) -> list[tuple[str, float, float]]:
    """(name, milliseconds, launches) of a step, the longest first; off a GPU, torch's operations instead."""
    kind = torch.autograd.DeviceType.CUDA if device.type == "cuda" else torch.autograd.DeviceType.CPU
    for _ in range(STEPS):
        step()
    result: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    for event in profiler.events():
        # Ranges of ours are shown on the device, too, around their kernels.
        if event.device_type == kind and not event.is_user_annotation:
            row = result[event.name[:120]]
            row[0] += event.time_range.elapsed_us() / 1e3 / STEPS
            row[1] += 1 / STEPS
    return sorted(((name, time, count) for name, (time, count) in result.items()), key=lambda row: -row[1])
