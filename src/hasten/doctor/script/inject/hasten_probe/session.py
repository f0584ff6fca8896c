"""The state of one watched process."""

from __future__ import annotations

import collections
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

TABLES = ("reads", "calls", "lines", "sent", "loops")
"""What the record has as a list of rows, each for a line of the script."""
# Either is known to TorchDynamo, which takes it for True; torch 2.1 has the second one only.
is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
Site = str
"""`/path/train.py:31` of the nearest line of user code, or ""."""


def rank() -> tuple[int, int]:
    """Rank and number of processes that train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0") or 0), int(os.environ.get("WORLD_SIZE", "1") or 1)


class Timeline:
    """A stack of open spans: time belongs to the innermost one, or to `over` while that is set."""

    def __init__(self) -> None:
        self.stack = ["overhead"]
        self.over = ""
        self.parts: dict[str, float] = {}
        self.at = time.perf_counter()

    def mark(self, label: str = "") -> None:
        """The time since the last mark is the innermost span's, or `label`'s."""
        now = time.perf_counter()
        label = self.over or label or self.stack[-1]
        self.parts[label] = self.parts.get(label, 0.0) + now - self.at
        self.at = now

    def push(self, label: str) -> None:
        self.mark()
        self.stack.append(label)

    def pop(self) -> None:
        self.mark()
        if len(self.stack) > 1:
            self.stack.pop()

    def relabel(self, label: str) -> None:
        """Label the time until a span opens or the innermost one closes."""
        self.mark()
        self.stack[-1] = label

    def cut(self) -> dict[str, float]:
        """Seconds by part since the last cut. Spans that were left open by an error are closed."""
        self.mark()
        del self.stack[1:]
        self.stack[0] = "overhead"
        parts, self.parts = self.parts, {}
        return parts


class Session:
    """Filled by the patches; read by the record and the experiments."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.wanted = request
        self.out: str = request["out"]
        self.wait_for_device: Callable[[], Any] = lambda: None
        self.steps_wanted: int = request["steps"]
        self.seconds: float = request["seconds"]
        self.deadline: float = request["start"] + request["seconds"]
        self.budget_s: float = request["budget"]
        self.assume_cuda: bool = request["cuda"]
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else request["cores"]
        self.cores: int = min(request["cores"], allowed)
        self.begin()

    def begin(self) -> None:
        """The state at the start of a process."""
        self.flow: Any = None
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.on = True
        self.finished = self.failed = False
        self.line = Timeline()
        self.index = 0
        self.step_at = time.perf_counter()
        self.cpu_at = time.thread_time()
        self.cpu: dict[str, float] = {}
        self.ender: int | None = None
        self.steps: list[dict[str, Any]] = []
        self.last_loader: int | None = None
        self.taken = False  # whether a loader gave a batch since the last step
        self.batches = 0
        self.all_loaders: list[dict[str, Any]] = []
        self.loader_facts: dict[int, dict[str, Any]] = {}  # by the identity of a loader
        self.loaders: list[tuple[Any, Site]] = []
        self.optimizers: list[tuple[Any, Site]] = []
        self.roots: list[tuple[Any, Site]] = []
        self.last_batches: dict[int, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.inputs: list[dict[tuple[Any, ...], Any]] = [{}, {}]  # of the networks, in the last step and in this
        self.repeated_at = 0.0
        self.depth = 0
        self.shapes: dict[str, int] = {}
        self.devices: dict[str, int] = {}
        self.autocast: dict[str, int] = {}
        self.module_sites: dict[int, tuple[Any, Site]] = {}
        self.conv_sites: dict[int, Site] = {}
        self.tables: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {name: {} for name in TABLES}
        self.modes: dict[str, dict[str, Any]] = {}
        self.mode_sites: dict[str, Site] = {}
        self.loss: Any = None
        self.losses: list[Any] = []  # of each step, tensors that are read at the end
        self.saves: list[dict[str, Any]] = []
        self.copies: dict[str, Any] = {"count": 0, "pinned": 0, "seconds": 0.0}
        self.validations: list[dict[str, Any]] = []
        self.validating: dict[str, Any] | None = None
        self.compiled_functions = 0
        self.tops: set[int] = set()
        self.candidates: list[Any] = []
        self.hooked: dict[int, tuple[Any, list[Any]]] = {}
        self.outermost: set[int] = set()
        self.strangers: dict[int, tuple[Any, list[Any]]] = {}  # modules with weights that no optimizer takes
        self.syncing = False
        self.uses: dict[str, Any] = {}
        self.loop_code: Any = None
        self.batch: set[int] = set()
        self.maps_read = False  # whether the host read a map, maybe a score's, since it had this batch
        self.batch_refs: list[Any] = []
        self.sent_in_step: dict[str, int] = {}
        self.sent_batch: set[tuple[int, int]] = set()
        self.sent_last: dict[tuple[Site, int], Any] = {}
        self.gradients: dict[int, tuple[Any, ...]] = {}
        self.opened: dict[str, dict[str, int]] = {}
        self.subclass = ""
        self.load: dict[str, Any] = {}
        self.sampler: Any = None
        self.timer: Any = None
        self.limited = False  # whether Lightning's passes are short ones
        self.engines: list[Any] = []  # of ignite, that run now; the innermost is last
        self.rounds = 0  # passes that ended early
        self.round_from = self.steps_wanted // 2  # the step from which the next one may
        # Share of its pass for which what happens in this step, beside the step itself, counts; and that of the next.
        self.round_share = self.round_late = 1.0
        self.added_s = 0.0  # seconds of this step that were not waited for, as its validation ended early
        self.written: set[str] = set()

    def begin_forked(self) -> None:
        """Reset the state in a forked process."""
        if self.flow is not None:
            self.flow.end()
        self.begin()

    def live(self) -> bool:
        """Whether to record now: only in the training thread and before the end."""
        return self.on and threading.get_ident() == self.thread

    def around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Replace `owner.name` by `call(session, original, *args, **kwargs)` while the session records.

        Code that is being compiled calls the original. An owner without such a name is left alone.
        """
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self.live():
                return original(*args, **kwargs)
            return call(self, original, *args, **kwargs)

        setattr(owner, name, wrapper)

    def sync(self) -> None:
        """Wait for the work queued on an accelerator, in the few steps whose parts are timed."""
        if self.syncing:
            self.wait_for_device()

    def row(self, table: str, **key: Any) -> dict[str, Any]:
        """The row of a table of the record for what `key` names; a new one counts from 0."""
        rows, values = self.tables[table], tuple(key.values())
        if values not in rows:
            rows[values] = collections.defaultdict(int, key)
        return rows[values]

    def called(self, kind: str, site: Site, seconds: float = 0.0) -> None:
        """Count a call that doesn't belong in a training loop; calls before the first step don't count."""
        if self.index > 0:
            row = self.row("calls", kind=kind, site=site)
            row["count"] += 1
            row["seconds"] += seconds

    def trains_on_last_batch(self) -> bool:
        """Whether the last batch is from a data set on which the training steps are made."""
        last = self.loader_facts.get(self.last_loader or -1) if self.taken else None
        loader = last["ref"]() if last is not None else None
        training = [facts["ref"]() for facts in self.all_loaders if facts["training"]]
        return loader is not None and any(each is not None and each.dataset is loader.dataset for each in training)

    def use(self, value: Any) -> None:
        """`value` goes into a backward pass, or to the host."""
        if self.flow is not None and self.live():
            self.flow.use(value)

    def enter_validation(self, site: Site) -> None:
        if self.validating is None and self.index > 0:
            self.line.mark()
            self.line.over = "validation"
            validation = {"step": self.index, "site": site, "at": time.perf_counter()}
            validation["batches"] = self.batches if self.taken else -1
            self.validating = {**validation, "passes": 0, "graphs": 0, "trained_on": 0}

    def leave_validation(self) -> None:
        """What took no batch but the training step's own, such as for pseudo-labels, was a part of that step."""
        if self.validating is None:
            return
        self.line.mark()
        self.line.over = ""
        validation, self.validating = self.validating, None
        validation["seconds"] = seconds = time.perf_counter() - validation.pop("at")
        facts, batches = self.loader_facts.get(self.last_loader or -1), validation.pop("batches")
        if facts is not None and facts["training"] and batches == self.batches:
            parts = self.line.parts
            seconds = min(seconds, parts.get("validation", 0.0))
            parts["validation"] = parts.get("validation", 0.0) - seconds
            parts["forward"] = parts.get("forward", 0.0) + seconds
        else:
            self.validations.append(validation)

    def goes_backward(self) -> None:
        """The graphs of the networks that were run in evaluation mode are needed after all."""
        if self.validating is not None:
            self.validating["graphs"] = 0
