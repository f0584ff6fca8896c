"""A recording in tables: kernels by kind, phases, transforms, modules, operations; every row is whole numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hasten.observe.ranges import LOADING, PHASES
from hasten.study.profile.recording import MODULE, STEP, Node, ProfileRecording, read

KERNELS, CALLS = "# Kernels", "# Calls"
CPU, GPU, TOTAL = "CPU Time (ns)", "GPU Time (ns)", "CPU Total (ns)"
"""DLProf's names, and two of ours: calls, and the time with all that was called."""
ALL, TENSOR, MEMORY, OTHER = "All kernels", "Kernels using Tensor Cores", "Memory kernels", "All other kernels"
OUTSIDE, BESIDE = "outside the phases", "beside the steps"

_TENSOR_CORE = re.compile(
    # The last three are Hasten's own.
    r"tensorop|16816|1688|884|8816|hmma|imma|wgmma|s161616|xmma|bf16bf16|nvjet|gmma"
    r"|^(convolve|filters|narrow)_kernel",
    re.IGNORECASE,
)
_DEVICE_MEMORY = re.compile(
    r"^(Memcpy|Memset)|copy_kernel|copy_columns|copy_device_to_device|FillFunctor|CatArray", re.IGNORECASE
)
_HOST_MEMORY = re.compile(
    r"^aten::(copy_|_to_copy|_to_dense|clone|contiguous|cat|stack|flip|fill_|zero_|index_copy_|pin_memory|_foreach_(copy|zero)_)$"
)

_TOPPED = ("transforms", "modules", "ops", "kernels")
TOP = 20
"""Rows of each table in the summary; the tables' own reports have all."""

Row = dict[str, int]
Table = dict[str, Row]


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables by the name of a row; the largest first."""

    kernels: Table
    kinds: Table
    phases: Table
    transforms: Table
    modules: Table
    ops: Table
    kind_of: dict[str, str] = field(default_factory=dict)


def tables_of(recording: ProfileRecording) -> Tables:
    kernels = _kernels(recording)
    kind_of = {name: _kind(name, recording.on_device) for name in kernels}
    return Tables(
        kernels=_largest(kernels),
        kinds=_kinds(kernels, kind_of),
        phases=_phases(recording),
        transforms=_largest(_ranges(_loading(recording), lambda node: not node.name.startswith(MODULE))),
        modules=_largest(_ranges(recording.main, lambda node: node.name.startswith(MODULE))),
        ops=_largest(_ops(recording)),
        kind_of=kind_of,
    )


def _kernels(recording: ProfileRecording) -> Table:
    """Kernels that ran on the device, with the host's time in what launched them; without a device, the CPU's own."""
    cpu: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for root in recording.roots():
        for node in root.below():
            for name, _ in node.launched if recording.on_device else ():
                cpu[name] += node.self_time // len(node.launched)
            if not recording.on_device and recording.is_kernel(node):
                cpu[node.name] += node.self_time
                calls[node.name] += 1
    calls = recording.device_calls if recording.on_device else calls
    names = recording.device if recording.on_device else cpu
    return {name: {CALLS: calls[name], CPU: cpu[name], GPU: recording.device[name]} for name in names}


def _kind(name: str, on_device: bool) -> str:
    if (_DEVICE_MEMORY if on_device else _HOST_MEMORY).search(name):
        return MEMORY
    return TENSOR if on_device and _TENSOR_CORE.search(name) else OTHER


def _kinds(kernels: Table, kind_of: dict[str, str]) -> Table:
    table: Table = {kind: {KERNELS: 0, CALLS: 0, CPU: 0, GPU: 0} for kind in (ALL, TENSOR, MEMORY, OTHER)}
    for name, row in kernels.items():
        for total in (table[ALL], table[kind_of[name]]):
            total[KERNELS] += 1
            for key, value in row.items():
                total[key] += value
    return table


def _phases(recording: ProfileRecording) -> Table:
    """Times of the phases; of nested ones only the outer counts. What autograd's own threads run is the backward's."""
    by_phase: dict[str, list[Node]] = {}
    for root in recording.main:
        for node in _outermost(root):
            by_phase.setdefault(node.phase or OUTSIDE, []).append(node)
    table: Table = {}
    for name in PHASES:
        nodes, apart = by_phase.get(name, []), recording.backward if name == "backward" else []
        if nodes or apart:
            # The training's thread waits for autograd's, so that their time is in its range already.
            table[name] = _row(recording, [*nodes, *apart], time=sum(node.time for node in nodes or apart))
    inside = sum(row[CPU] for row in table.values())
    table[OUTSIDE] = _row(recording, _loose(recording.main), time=max(0, recording.wall - inside))
    if recording.beside:
        table[BESIDE] = _row(recording, recording.beside, time=sum(node.time for node in recording.beside))
    return table


def _row(recording: ProfileRecording, nodes: Iterable[Node], *, time: int) -> Row:
    names: set[str] = set()
    calls = gpu = 0
    for root in nodes:
        for node in root.below():
            for name, duration in node.launched:
                names.add(name)
                calls, gpu = calls + 1, gpu + duration
            if not recording.on_device and recording.is_kernel(node):
                names.add(node.name)
                calls += 1
    return {KERNELS: len(names), CALLS: calls, CPU: time, GPU: gpu}


def _outermost(root: Node) -> Iterator[Node]:
    """The phases below a node that lie in no other one; the node itself if it is one."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.phase is not None:
            yield node
        else:
            stack.extend(node.children)


def _loose(roots: Iterable[Node]) -> list[Node]:
    """What lies in no phase, each without its children, which are in the list themselves."""
    outside = []
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.phase is None:
            outside.append(Node(node.name, node.is_range or bool(node.children), node.begin, 0, [], node.launched))
            stack.extend(node.children)
    return outside


def _loading(recording: ProfileRecording) -> list[Node]:
    inside = [node for root in recording.main for node in _outermost(root) if node.phase == LOADING]
    return [*inside, *recording.beside]


def _ranges(roots: Iterable[Node], matches: Callable[[Node], bool]) -> Table:
    """Every range's time without that of the ranges inside it."""
    table: Table = {}
    for root in roots:
        for node in root.below():
            if not node.is_range or node.phase is not None or node.name == STEP or not matches(node):
                continue
            inner, gpu = _inside(node)
            _add(table, node, cpu=max(0, node.time - inner), gpu=gpu)
    return table


def _add(table: Table, node: Node, *, cpu: int, gpu: int) -> None:
    """A call of the node's own time `cpu`."""
    row = table.setdefault(node.short, {CALLS: 0, CPU: 0, TOTAL: 0, GPU: 0})
    for key, value in ((CALLS, 1), (CPU, cpu), (TOTAL, node.time), (GPU, gpu)):
        row[key] += value


def _inside(top: Node) -> tuple[int, int]:
    """Time of the ranges right inside a range, and the device's of what it launched outside of them."""
    inner, gpu = 0, sum(duration for _, duration in top.launched)
    stack = list(top.children)
    while stack:
        node = stack.pop()
        if node.is_range:
            inner += node.time
            continue
        gpu += sum(duration for _, duration in node.launched)
        stack.extend(node.children)
    return inner, gpu


def _ops(recording: ProfileRecording) -> Table:
    table: Table = {}
    for root in recording.roots():
        for node in root.below():
            if not node.is_range:
                _add(table, node, cpu=node.self_time, gpu=sum(duration for _, duration in node.launched))
    return table


def _largest(table: Table) -> Table:
    return dict(sorted(table.items(), key=lambda item: (-item[1][GPU], -item[1][CPU], item[0])))


def summarise(profiler: Any, *, top: int = TOP) -> dict[str, Any]:
    """The summary of a finished `torch.profiler.profile`, of any loop; counts and whole ns throughout.

    "All Kernels" has the shape of DLProf's summary report: by kind ("All kernels", "Kernels using Tensor Cores",
    "Memory kernels", "All other kernels") "# Kernels" (different ones), "CPU Time (ns)" and "GPU Time (ns)", and
    besides "# Calls". With a GPU a kernel is what ran there, copies and fills included, and its CPU time is that of the
    operation that launched it; without one, it is an operation that calls no other, or a region that a compiler made,
    and GPU time is 0. "Phases" splits the wall time of the training's thread; "Transforms" has the ranges inside data
    loading and on threads beside the training; "Modules" the ranges of modules, "Ops" operations with their own time,
    "Kernels" kernels: the `top` largest of each. Raises ValueError for a profile that holds nothing.
    """
    recording = read(profiler)
    return summary_of(recording, tables_of(recording), top=top)


def summary_of(recording: ProfileRecording, tables: Tables, *, top: int = TOP) -> dict[str, Any]:
    return {
        "All Kernels": tables.kinds,
        "Phases": tables.phases,
        **{name.title(): dict(list(getattr(tables, name).items())[:top]) for name in _TOPPED},
        "Wall": {CPU: recording.wall, GPU: sum(recording.device.values())},
    }
