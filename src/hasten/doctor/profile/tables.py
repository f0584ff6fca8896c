"""What torch's profiler recorded: trees of ranges and operations, and the tables made of them, in whole numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
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
    r"^aten::(_?(un)?safe_view|_reshape_alias|alias|as_strided_?|broadcast_to|chunk|detach_?|diagonal|empty\w*|expand(_as)?|"
    r"flatten|is_\w+|item|_local_scalar_dense|lift_fresh|movedim|mT|narrow|new_empty\w*|permute|requires_grad_|reshape|"
    r"resize_|resolve_(conj|neg)|result_type|select|set_|set_data|slice|split\w*|_?squeeze_?|t|T|to|transpose_?|"
    r"unbind|unflatten|unfold|unsqueeze_?|view(_as)?|_nnpack_available|_has_\w+|conj|numpy_T|adjoint)$"
    r"|^(autograd|torch::autograd|profiler|c10)::"
)
"""Operations that only lay out memory or make views, and internal ones: no device runs a kernel for them."""
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")
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


@dataclass(slots=True)
class Node:
    """A range or an operation on one thread; times in ns."""

    name: str
    is_range: bool
    begin: int
    time: int
    children: list[Node] = field(default_factory=list)
    launched: list[tuple[str, int]] = field(default_factory=list)
    """(kernel, ns on the device) that it launched itself."""

    @property
    def self_time(self) -> int:
        """Time without that of its children."""
        return max(0, self.time - sum(child.time for child in self.children))

    @property
    def phase(self) -> str | None:
        if self.name in PHASES:
            return self.name
        return next((phase for begin, phase in _OF_TORCH.items() if self.name.startswith(begin)), None)

    @property
    def short(self) -> str:
        return self.name.removeprefix(_AUTOGRAD).removeprefix(MODULE)


def below(roots: Iterable[Node]) -> Iterator[Node]:
    """The nodes and all inside them."""
    stack = list(roots)
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children)


@dataclass
class ProfileRecording:
    """Threads of one process, over one stretch of time."""

    main: list[Node]
    """The outermost ranges and operations of the thread that trains, in order."""
    backward: list[Node]
    """Nodes of autograd's threads, where it does not run on the training one."""
    beside: list[Node]
    """Nodes of all other threads."""
    device: Counter[str]
    """ns by kernel, of all that ran on the device, launched by what was recorded or not."""
    device_calls: Counter[str]

    @property
    def wall(self) -> int:
        """ns from the first to the last of the training's thread."""
        if not self.main:
            return 0
        return max(node.begin + node.time for node in self.main) - min(node.begin for node in self.main)

    @property
    def on_device(self) -> bool:
        return bool(self.device)

    @cached_property
    def workers(self) -> frozenset[str]:
        """Operations that spend at least half of their time themselves, in all of their calls together."""
        self_time: Counter[str] = Counter()
        whole: Counter[str] = Counter()
        for node in below(self.roots()):
            self_time[node.name] += node.self_time
            whole[node.name] += node.time
        return frozenset(name for name in whole if 2 * self_time[name] >= whole[name])

    def is_kernel(self, node: Node) -> bool:
        """Whether, on a CPU, it is an operation that delegates little or no work to others, or a compiled region."""
        if node.is_range or not _works(node.name):
            return node.name.startswith(_COMPILED)
        return node.name in self.workers or not any(_works(child.name) for child in node.children)

    def roots(self) -> list[Node]:
        return [*self.main, *self.backward, *self.beside]


def read(profiler: Any) -> ProfileRecording:
    """The recording of a finished `torch.profiler.profile`. Raises ValueError for one that holds nothing."""
    try:
        events = list(profiler.events() or ())
    except (AssertionError, AttributeError, RuntimeError) as error:
        raise ValueError("the profile has not been taken: summarise it after its `with` block has ended") from error
    threads: dict[int, list[Node]] = {}
    device: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        if event.name.startswith("["):  # memory, and marks of torch's own
            continue
        if str(event.device_type) != "DeviceType.CPU":
            if not event.is_user_annotation and event.name not in ("", "Context Sync", "Event Sync", "Stream Sync"):
                device[event.name] += _ns(event.time_range)
                calls[event.name] += 1
        elif event.cpu_parent is None and not event.is_async:
            threads.setdefault(event.thread, []).append(_node(event))
    if not threads:
        raise ValueError("the profile holds nothing: record ProfilerActivity.CPU, and at least one step")
    trains = max(threads, key=lambda thread: (_steps(threads[thread]), -thread))
    backward: list[Node] = []
    beside: list[Node] = []
    for thread, roots in threads.items():
        if thread != trains:
            autograd = sum(node.name.startswith(_AUTOGRAD) for node in roots)
            (backward if 2 * autograd > len(roots) else beside).extend(roots)
    main = sorted(threads[trains], key=lambda node: node.begin)
    return ProfileRecording(main=main, backward=backward, beside=beside, device=device, device_calls=calls)


def _node(event: Any) -> Node:
    # Calls of the driver are the operation's own time, and what they launch is the operation's.
    driver = [child for child in event.cpu_children if _is_driver(child)]
    return Node(
        name=event.name,
        is_range=bool(event.is_user_annotation) or event.scope == _USER_SCOPE,
        begin=_whole(event.time_range.start),
        time=_ns(event.time_range),
        children=[_node(child) for child in event.cpu_children if not _is_driver(child)],
        launched=[(kernel.name, _whole(kernel.duration)) for each in (event, *driver) for kernel in each.kernels],
    )


def _is_driver(event: Any) -> bool:
    return bool(event.name.startswith(("cuda", "cu", "hip")) and "::" not in event.name and not event.cpu_children)


def _works(name: str) -> bool:
    return "::" in name and not _NO_WORK.search(name)


def _ns(interval: Any) -> int:
    return max(0, _whole(interval.end) - _whole(interval.start))


def _whole(microseconds: float) -> int:
    return round(1000 * microseconds)


def _steps(roots: list[Node]) -> int:
    """Number of training ranges and optimizer steps of a thread; the training thread has most."""
    names = {STEP, FORWARD, OPTIMIZER}
    return sum(node.name in names or node.name.startswith("Optimizer.step#") for node in below(roots))


# Tables


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables by the name of a row; the largest first."""

    kernels: Table
    kinds: Table
    phases: Table
    transforms: Table
    modules: Table
    ops: Table


def tables_of(recording: ProfileRecording) -> Tables:
    kernels = _kernels(recording)
    return Tables(
        kernels=_largest(kernels),
        kinds=_kinds(kernels, on_device=recording.on_device),
        phases=_phases(recording),
        transforms=_largest(_ranges(_loading(recording), lambda node: not node.name.startswith(MODULE))),
        modules=_largest(_ranges(recording.main, lambda node: node.name.startswith(MODULE))),
        ops=_largest(_ops(recording)),
    )


def _kernels(recording: ProfileRecording) -> Table:
    """Kernels that ran on the device, with the host's time in what launched them; without a device, the CPU's own."""
    cpu: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for node in below(recording.roots()):
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


def _kinds(kernels: Table, *, on_device: bool) -> Table:
    table: Table = {kind: {KERNELS: 0, CALLS: 0, CPU: 0, GPU: 0} for kind in (ALL, TENSOR, MEMORY, OTHER)}
    for name, row in kernels.items():
        for total in (table[ALL], table[_kind(name, on_device)]):
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
            table[name] = _row(recording, below([*nodes, *apart]), time=sum(node.time for node in nodes or apart))
    inside = sum(row[CPU] for row in table.values())
    table[OUTSIDE] = _row(recording, _outside(recording.main), time=max(0, recording.wall - inside))
    if recording.beside:
        table[BESIDE] = _row(recording, below(recording.beside), time=sum(node.time for node in recording.beside))
    return table


def _row(recording: ProfileRecording, nodes: Iterable[Node], *, time: int) -> Row:
    names: set[str] = set()
    calls = gpu = 0
    for node in nodes:
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


def _outside(roots: Iterable[Node]) -> Iterator[Node]:
    """The nodes that lie in no phase."""
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.phase is None:
            yield node
            stack.extend(node.children)


def _loading(recording: ProfileRecording) -> list[Node]:
    inside = [node for root in recording.main for node in _outermost(root) if node.phase == LOADING]
    return [*inside, *recording.beside]


def _ranges(roots: Iterable[Node], matches: Callable[[Node], bool]) -> Table:
    """Every range's time without that of the ranges inside it."""
    table: Table = {}
    for node in below(roots):
        if node.is_range and node.phase is None and node.name != STEP and matches(node):
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
    for node in below(recording.roots()):
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
