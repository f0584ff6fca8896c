"""A recording in tables: kernels by kind, phases, transforms, modules, operations; every row is whole numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hasten.observe.ranges import LOADING, PHASES
from hasten.study.profile.recording import MODULE, STEP, Node, Recording

KERNELS, CALLS = "# Kernels", "# Calls"
CPU, GPU, TOTAL = "CPU Time (ns)", "GPU Time (ns)", "CPU Total (ns)"
"""DLProf's names, and two of ours: calls, and the time with all that was called."""
ALL, TENSOR, MEMORY, OTHER = "All kernels", "Kernels using Tensor Cores", "Memory kernels", "All other kernels"
OUTSIDE, BESIDE = "outside the phases", "beside the steps"

_TENSOR_CORE = re.compile(
    r"tensorop|16816|1688|884|8816|hmma|imma|wgmma|s161616|xmma|bf16bf16|nvjet|gmma", re.IGNORECASE
)
_DEVICE_MEMORY = re.compile(r"^(Memcpy|Memset)|copy_kernel|copy_device_to_device|FillFunctor|CatArray", re.IGNORECASE)
_HOST_MEMORY = re.compile(
    r"^aten::(copy_|_to_copy|_to_dense|clone|contiguous|cat|stack|flip|fill_|zero_|index_copy_|pin_memory|_foreach_(copy|zero)_)$"
)

Row = dict[str, int]
Table = dict[str, Row]


@dataclass(frozen=True, slots=True)
class Kernel:
    """All runs of one kernel; ns."""

    name: str
    kind: str
    calls: int
    cpu: int
    gpu: int


@dataclass(frozen=True, slots=True)
class Tables:
    """By the name of a row; the largest first."""

    kernels: Table
    kinds: Table
    phases: Table
    transforms: Table
    modules: Table
    ops: Table
    kind_of: dict[str, str] = field(default_factory=dict)


def tables_of(recording: Recording) -> Tables:
    kernels = _kernels(recording)
    return Tables(
        kernels=_largest({each.name: {CALLS: each.calls, CPU: each.cpu, GPU: each.gpu} for each in kernels}),
        kinds=_kinds(kernels),
        phases=_phases(recording),
        transforms=_largest(_ranges(_loading(recording), lambda node: not node.name.startswith(MODULE))),
        modules=_largest(_ranges(recording.main, lambda node: node.name.startswith(MODULE))),
        ops=_largest(_ops(recording)),
        kind_of={each.name: each.kind for each in kernels},
    )


def _kernels(recording: Recording) -> list[Kernel]:
    """On a device those that ran there, with the host's time in what launched them; else a CPU's own."""
    cpu: dict[str, int] = {}
    calls: dict[str, int] = {}
    for root in recording.roots():
        for node in root.below():
            if recording.on_device:
                for name, _ in node.launched:
                    cpu[name] = cpu.get(name, 0) + node.own // len(node.launched)
            elif recording.is_kernel(node):
                cpu[node.name] = cpu.get(node.name, 0) + node.own
                calls[node.name] = calls.get(node.name, 0) + 1
    if not recording.on_device:
        memory = {name: MEMORY if _HOST_MEMORY.search(name) else OTHER for name in cpu}
        return [Kernel(name, memory[name], calls[name], cpu[name], 0) for name in cpu]
    return [
        Kernel(name, _kind(name), recording.device_calls[name], cpu.get(name, 0), recording.device[name])
        for name in recording.device
    ]


def _kind(name: str) -> str:
    if _DEVICE_MEMORY.search(name):
        return MEMORY
    return TENSOR if _TENSOR_CORE.search(name) else OTHER


def _kinds(kernels: Iterable[Kernel]) -> Table:
    table: Table = {kind: {KERNELS: 0, CALLS: 0, CPU: 0, GPU: 0} for kind in (ALL, TENSOR, MEMORY, OTHER)}
    for kernel in kernels:
        for kind in (ALL, kernel.kind):
            row = table[kind]
            row[KERNELS] += 1
            row[CALLS] += kernel.calls
            row[CPU] += kernel.cpu
            row[GPU] += kernel.gpu
    return table


def _phases(recording: Recording) -> Table:
    """Of a phase inside another one, only the outer counts. What autograd's own threads run is the backward's."""
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


def _row(recording: Recording, nodes: Iterable[Node], *, time: int) -> Row:
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


def _loading(recording: Recording) -> list[Node]:
    inside = [node for root in recording.main for node in _outermost(root) if node.phase == LOADING]
    return [*inside, *recording.beside]


def _ranges(roots: Iterable[Node], matches: object) -> Table:
    """Every range's time without that of the ranges inside it."""
    assert callable(matches)
    table: Table = {}
    for root in roots:
        for node in root.below():
            if not node.is_range or node.phase is not None or node.name == STEP or not matches(node):
                continue
            inner, gpu = _inside(node)
            row = table.setdefault(node.short, {CALLS: 0, CPU: 0, TOTAL: 0, GPU: 0})
            row[CALLS] += 1
            row[CPU] += max(0, node.time - inner)
            row[TOTAL] += node.time
            row[GPU] += gpu
    return table


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


def _ops(recording: Recording) -> Table:
    table: Table = {}
    for root in recording.roots():
        for node in root.below():
            if node.is_range:
                continue
            row = table.setdefault(node.short, {CALLS: 0, CPU: 0, TOTAL: 0, GPU: 0})
            row[CALLS] += 1
            row[CPU] += node.own
            row[TOTAL] += node.time
            row[GPU] += sum(duration for _, duration in node.launched)
    return table


def _largest(table: Table) -> Table:
    return dict(sorted(table.items(), key=lambda item: (-item[1][GPU], -item[1][CPU], item[0])))
