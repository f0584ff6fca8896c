"""Tables of what torch's profiler recorded, by its own sums, in whole numbers: kernels by kind, phases, operations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from hasten.observe.ranges import BACKWARD, FORWARD, LOADING, OPTIMIZER, PHASES

STEP = "step"
"""The range of a whole training step."""
MODULE = "module: "
"""What the ranges of a network's modules begin with."""
_USER_SCOPE = 7
_AUTOGRAD = "autograd::engine::evaluate_function: "
_OF_TORCH = {
    "enumerate(DataLoader)#": LOADING,
    "Optimizer.step#": OPTIMIZER,
    "Optimizer.zero_grad#": OPTIMIZER,
    _AUTOGRAD: BACKWARD,
    "DistributedDataParallel.forward": FORWARD,
}
"""Ranges that torch marks itself, and the phase that each stands for in a loop without ranges."""
_NO_WORK = re.compile(
    r"^aten::(_?(un)?safe_view|_reshape_alias|alias|as_strided_?|detach_?|empty\w*|expand(_as)?|item|"
    r"_local_scalar_dense|new_empty\w*|permute|requires_grad_|reshape|resize_|select|set_|slice|split\w*|_?squeeze_?|"
    r"t|to|transpose_?|unbind|unsqueeze_?|view(_as)?|_nnpack_available)$"
    r"|^(autograd|torch::autograd|profiler|c10)::"
)
"""Operations that only lay out memory or make views, and internal ones: no device runs a kernel for them."""
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")
KERNELS, CALLS = "# Kernels", "# Calls"
CPU, GPU, TOTAL = "CPU Time (ns)", "GPU Time (ns)", "CPU Total (ns)"
"""DLProf's names, and two of ours: calls, and the time with all that was called."""
ALL, TENSOR, MEMORY, OTHER = "All kernels", "Kernels using Tensor Cores", "Memory kernels", "All other kernels"
OUTSIDE = "outside the phases"
_TENSOR_CORE = re.compile(
    # The last three are Hasten's own.
    r"tensorop|16816|1688|884|8816|hmma|imma|wgmma|s161616|xmma|bf16bf16|nvjet|gmma"
    r"|^(convolve|filters|narrow)_kernel",
    re.IGNORECASE,
)
_DEVICE_MEMORY = re.compile(
    r"^(Memcpy|Memset)|copy_kernel|copy_columns|copy_device_to_device|FillFunctor|CatArray", re.IGNORECASE
)
_HOST_MEMORY = re.compile(r"^aten::(copy_|_to_copy|clone|contiguous|cat|stack|flip|fill_|zero_|_foreach_(copy|zero)_)$")
TOP = 20
"""Rows of each table in the summary."""

Table = dict[str, dict[str, int]]
"""Rows by name."""


def summarise(profiler: Any, *, top: int = TOP) -> dict[str, Any]:
    """The summary of a finished `torch.profiler.profile`, of any loop; counts and whole ns throughout.

    "All Kernels" has the shape of DLProf's summary report: by kind ("All kernels", "Kernels using Tensor Cores",
    "Memory kernels", "All other kernels") "# Kernels" (different ones), "CPU Time (ns)" and "GPU Time (ns)", and
    besides "# Calls". With a GPU a kernel is what ran there, copies and fills included, and its CPU time is that of the
    operation that launched it; without one, it is an operation that does its work itself, or a region that a compiler
    made, and GPU time is 0. "Phases" splits the wall time of the training's thread; "Transforms" has all other ranges,
    "Modules" those of modules, "Ops" operations, "Kernels" kernels: the `top` largest of each. Raises ValueError for a
    profile that holds nothing.
    """
    try:
        events = [event for event in profiler.events() or () if not event.name.startswith("[")]
    except (AssertionError, AttributeError, RuntimeError) as error:
        raise ValueError("the profile has not been taken: summarise it after its `with` block has ended") from error
    host = [event for event in events if _on_host(event) and not event.is_async]
    if not host:
        raise ValueError("the profile holds nothing: record ProfilerActivity.CPU, and at least one step")
    sums = [row for row in profiler.key_averages() if not row.key.startswith("[")]
    device = [row for row in sums if not _on_host(row) and not _is_range(row) and not row.key.endswith(" Sync")]
    rows = [row for row in sums if _on_host(row)]
    kernels = _device_kernels(device, host) if device else _host_kernels(rows)
    ranges = [row for row in rows if _is_range(row) and row.key != STEP and _phase(row.key) is None]
    wall = _ns(max(event.time_range.end for event in host) - min(event.time_range.start for event in host))
    listings = {
        "Transforms": _totals(row for row in ranges if not row.key.startswith(MODULE)),
        "Modules": _totals(row for row in ranges if row.key.startswith(MODULE)),
        "Ops": _totals(row for row in rows if not _is_range(row)),
        "Kernels": kernels,
    }
    return {
        "All Kernels": _kinds(kernels, on_device=bool(device)),
        "Phases": _phases(host, wall),
        **{name: dict(sorted(table.items(), key=_by_size)[:top]) for name, table in listings.items()},
        "Wall": {CPU: wall, GPU: sum(row[GPU] for row in kernels.values())},
    }


def _on_host(event: Any) -> bool:
    return str(event.device_type) == "DeviceType.CPU"


def _is_range(event: Any) -> bool:
    return bool(event.is_user_annotation) or event.scope == _USER_SCOPE


def _phase(name: str) -> str | None:
    if name in PHASES:
        return name
    return next((phase for begin, phase in _OF_TORCH.items() if name.startswith(begin)), None)


def _ns(microseconds: float) -> int:
    return max(0, round(1000 * microseconds))


def _device_kernels(rows: Iterable[Any], host: Iterable[Any]) -> Table:
    """What ran on a device, copies included, with the host's time in the operations that launched it."""
    launches: Counter[str] = Counter()
    for event in host:
        for kernel in event.kernels:
            launches[kernel.name] += _ns(event.self_cpu_time_total / len(event.kernels))
    return {row.key: {CALLS: row.count, CPU: launches[row.key], GPU: _ns(row.self_device_time_total)} for row in rows}


def _host_kernels(rows: Iterable[Any]) -> Table:
    """Operations of a CPU that spend at least half of their time themselves, and compiled regions."""
    return {
        row.key: {CALLS: row.count, CPU: _ns(row.self_cpu_time_total), GPU: 0}
        for row in rows
        if row.key.startswith(_COMPILED)
        or ("::" in row.key and not _NO_WORK.search(row.key) and 2 * row.self_cpu_time_total >= row.cpu_time_total)
    }


def _kinds(kernels: Table, *, on_device: bool) -> Table:
    table: Table = {kind: {KERNELS: 0, CALLS: 0, CPU: 0, GPU: 0} for kind in (ALL, TENSOR, MEMORY, OTHER)}
    for name, row in kernels.items():
        is_memory = (_DEVICE_MEMORY if on_device else _HOST_MEMORY).search(name)
        kind = MEMORY if is_memory else TENSOR if on_device and _TENSOR_CORE.search(name) else OTHER
        for total in (table[ALL], table[kind]):
            total[KERNELS] += 1
            for key, value in row.items():
                total[key] += value
    return table


def _phases(host: list[Any], wall: int) -> Table:
    """Times of the phases on the thread that trains; of nested ones only the outer counts.

    On a GPU autograd runs on a thread of its own, for which the training's waits: what it launches is the backward's.
    """
    steps = Counter(event.thread for event in host if event.name in (STEP, FORWARD) or "Optimizer.step#" in event.name)
    trains = steps.most_common(1)[0][0] if steps else host[0].thread
    table: Table = {}
    for event in host:
        phase = _phase(event.name)
        if phase is None or (event.thread != trains and phase != BACKWARD) or _within_phase(event):
            continue
        row = table.setdefault(phase, {CALLS: 0, CPU: 0, GPU: 0})
        row[GPU] += _ns(event.device_time_total)
        if event.thread == trains:
            row[CALLS] += 1
            row[CPU] += _ns(event.cpu_time_total)
    phases = {name: table[name] for name in PHASES if name in table}
    return {**phases, OUTSIDE: {CALLS: 0, CPU: max(0, wall - sum(row[CPU] for row in phases.values())), GPU: 0}}


def _within_phase(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None and _phase(parent.name) is None:
        parent = parent.cpu_parent
    return parent is not None


def _totals(rows: Iterable[Any]) -> Table:
    """Calls, the host's own time and with all inside, and the device's of all inside."""
    return {
        row.key.removeprefix(_AUTOGRAD).removeprefix(MODULE): {
            CALLS: row.count,
            CPU: _ns(row.self_cpu_time_total),
            TOTAL: _ns(row.cpu_time_total),
            GPU: _ns(row.device_time_total if _is_range(row) else row.self_device_time_total),
        }
        for row in rows
    }


def _by_size(item: tuple[str, dict[str, int]]) -> tuple[int, int, str]:
    """What sorts rows, the largest first."""
    name, row = item
    return -row[GPU], -row.get(TOTAL, row[CPU]), name
