"""Networks that are run for nothing: where the outputs of each call in one step go, until the end of the next step."""

from __future__ import annotations

import collections
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as hooks
from torch.utils import _python_dispatch as dispatch

from .nested import tensors_in
from .on_lines import loop_line
from .session import Session
from .sites import caller, is_user, nearest

FIRST, LAST = 1, 3
"""Calls of step `FIRST` are followed until step `LAST` begins: both lie in the warm-up."""
LOOP = 8
"""Times that one instruction of user code gives torch work in a step, from which a Python loop does."""
_OWN_SPANS = ("wait", "backward", "optimizer", "checkpoint")


class Flow(dispatch.TorchDispatchMode):
    """Follows memory, so that views and `.data` count too. A call is used if a backward pass or the host asks for what
    came of it, or if some of that is still kept a step later, as by a metric or a memory bank."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._innermost = dispatch._get_current_dispatch_mode  # A torch without it fails here, with nothing entered.
        self._session = session
        self._calls: list[tuple[Any, str]] = []
        self._used: set[int] = set()
        self._origins: dict[int, tuple[StorageWeakRef, frozenset[int]]] = {}
        self._depth = 0
        self._current: frozenset[int] = frozenset()
        self._lost = False
        self._given: collections.Counter[tuple[Any, ...]] = collections.Counter()
        # torch warns of the hooks in each call of a compiled network, in the script's own output.
        warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
        self._handles = [
            hooks.register_module_forward_pre_hook(lambda module, args: self._enter(module)),
            hooks.register_module_forward_hook(lambda module, args, result: self._leave(module)),
        ]
        self.__enter__()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if self._handles and not self._lost:
            try:
                self._follow((args, kwargs or {}), result)
                self._count(caller())
            except Exception:
                self._lost = True
        return result

    def use(self, value: Any) -> None:
        """`value` goes into a backward pass, or to the host."""
        try:
            self._used |= self._origin(tensors_in(value))
        except Exception:
            self._lost = True  # Tensors without their own memory, for example.

    def needless(self) -> list[tuple[Any, str]]:
        """Modules and the lines that called them; following ends."""
        self.end()
        kept = [numbers for storage, numbers in self._origins.values() if not storage.expired()]
        self._used = self._used.union(*kept)
        return [] if self._lost else [call for number, call in enumerate(self._calls) if number not in self._used]

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._innermost() is self:
            self.__exit__(None, None, None)

    def _origin(self, tensors: Iterator[torch.Tensor]) -> frozenset[int]:
        known = (self._origins.get(each.untyped_storage()._cdata) for each in tensors)
        return frozenset().union(*(origin[1] for origin in known if origin is not None))

    def _follow(self, given: Any, result: Any) -> None:
        origin, outputs = self._origin(tensors_in(given)), list(tensors_in(result))
        if not outputs:
            self._used |= origin
        if not origin and not self._current:
            return
        inputs = {each.untyped_storage()._cdata for each in tensors_in(given)}
        for storage in (each.untyped_storage() for each in outputs):
            # What a network changes in place, or gives a view of, is not made by it.
            numbers = origin if storage._cdata in inputs else origin | self._current
            if numbers:
                before = self._origins.get(storage._cdata, (None, frozenset()))[1]
                self._origins[storage._cdata] = (StorageWeakRef(storage), before | numbers)

    def _count(self, frame: Any) -> None:
        """Count what an instruction of the training loop itself gives torch to do, not a network or its backward."""
        session = self._session
        if self._depth or session.depth or session.validating is not None or not session.live():
            return
        while str(frame.f_globals.get("__name__", "")).startswith(("torch._dynamo", "torch._compile")):
            frame = frame.f_back  # torch calls modes by a function of its own.
        if session.line.stack[-1] in _OWN_SPANS or not is_user(frame.f_code.co_filename):
            return
        # Batches whose gradients are accumulated are no loop: each has its backward pass.
        place = (frame.f_code, frame.f_lasti, session.index, session.cpu.get("backward_wall"))
        self._given[place] += 1
        if self._given[place] >= LOOP:
            row = session.row("loops", site=loop_line(session, frame))
            row["count"] += LOOP if self._given[place] == LOOP else 1

    def _enter(self, module: Any) -> None:
        session = self._session
        if not session.live() or next(module.parameters(), None) is None:
            return
        self._depth += 1
        if self._depth > 1 or session.index != FIRST or session.validating is not None:
            return
        evaluates = id(module) in session.hooked and not torch.is_grad_enabled()
        if evaluates or {"backward", "wait"} & set(session.line.stack):
            return
        self._current = frozenset([len(self._calls)])
        self._calls.append((module, nearest()))

    def _leave(self, module: Any) -> None:
        if self._depth > 0 and self._session.live() and next(module.parameters(), None) is not None:
            self._depth -= 1
            if self._depth == 0:
                self._current = frozenset()


def watch(session: Session) -> None:
    """Start or read the flow at the end of each step."""
    if session.index == FIRST and not session.compiled_functions:
        session.flow = Flow(session)
    elif session.index == LAST and session.flow is not None:
        flow, session.flow = session.flow, None
        for module, site in flow.needless():
            _time(session, module, site)


def _time(session: Session, module: Any, site: str) -> None:
    """The calls of a module by one line, from now on."""
    start = 0.0

    def enter(*_: Any) -> None:
        nonlocal start
        start = time.perf_counter()

    def leave(*_: Any) -> None:
        if session.live() and nearest() == site:
            session.called("needless_forward", site, time.perf_counter() - start)

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave)
