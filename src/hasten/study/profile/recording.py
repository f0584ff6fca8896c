"""What torch's profiler recorded, as trees of ranges and operations, one per thread, with the kernels that they ran."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
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

    def below(self) -> Iterator[Node]:
        """Itself and all inside it."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children)


@dataclass(frozen=True, slots=True)
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
    workers: frozenset[str] = frozenset()
    """Operations that spend at least half of their time themselves, in all of their calls together."""

    @property
    def wall(self) -> int:
        """ns from the first to the last of the training's thread."""
        if not self.main:
            return 0
        return max(node.begin + node.time for node in self.main) - min(node.begin for node in self.main)

    @property
    def on_device(self) -> bool:
        return bool(self.device)

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
    workers = workers_of([*main, *backward, *beside])
    return ProfileRecording(
        main=main, backward=backward, beside=beside, device=device, device_calls=calls, workers=workers
    )  # fmt: skip


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


def workers_of(roots: list[Node]) -> frozenset[str]:
    """Operations that spend at least half of their time themselves."""
    self_time: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    for root in roots:
        for node in root.below():
            self_time[node.name] += node.self_time
            whole[node.name] += node.time
    return frozenset(name for name in whole if 2 * self_time[name] >= whole[name])


def _works(name: str) -> bool:
    return "::" in name and not _NO_WORK.search(name)


def _ns(interval: Any) -> int:
    return max(0, _whole(interval.end) - _whole(interval.start))


def _whole(microseconds: float) -> int:
    return round(1000 * microseconds)


def _steps(roots: list[Node]) -> int:
    """Number of training ranges and optimizer steps of a thread; the training thread has most."""
    names = {STEP, FORWARD, OPTIMIZER}
    count = 0
    for root in roots:
        count += sum(node.name in names or node.name.startswith("Optimizer.step#") for node in root.below())
    return count
