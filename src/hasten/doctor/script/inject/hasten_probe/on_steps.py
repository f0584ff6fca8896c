"""Optimizers: each step of the first one ends a training step, and the last step wanted ends the watching."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from . import on_data, on_lines, stop
from .exp_time import Others, children_s
from .on_modules import find_roots, keep_called, zero_grad
from .session import Session
from .sites import nearest


def install(session: Session) -> None:
    session.around(torch.optim.Optimizer, "__init__", _make)
    session.around(torch.optim.Optimizer, "zero_grad", _zero_grad)
    register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: _before(session))
    register_optimizer_step_post_hook(lambda optimizer, args, kwargs: _after(session, optimizer))


def _make(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    original(self, *args, **kwargs)
    if not any(existing is self for existing, _ in session.optimizers):
        session.optimizers.append((self, nearest()))


def _zero_grad(session: Session, original: Callable[..., Any], self: Any, set_to_none: bool = True) -> Any:
    _note_waste(session, self)
    return zero_grad(session, original, self, set_to_none)


def _before(session: Session) -> None:
    if torch.compiler.is_compiling():
        return
    stop.again(session)
    if session.live():
        session.sync()
        session.line.push("optimizer")


def _after(session: Session, optimizer: Any) -> None:
    if torch.compiler.is_compiling() or not session.live():
        return
    session.sync()
    session.line.pop()
    session.gradients[id(optimizer)] = _gradients(optimizer)
    if session.ender is None:
        session.ender = id(optimizer)
    if session.ender == id(optimizer):
        _end_step(session)


def _gradients(optimizer: Any) -> tuple[Any, ...]:
    """Versions of the first weights' gradients, to detect a change."""
    some = [p for group in optimizer.param_groups for p in group["params"]][:4]
    return tuple(None if p.grad is None else (id(p.grad), p.grad._version) for p in some)


def _note_waste(session: Session, optimizer: Any) -> None:
    """Gradients that came after the optimizer's last step, and are thrown away before the next."""
    at_step, now = session.gradients.get(id(optimizer)), _gradients(optimizer)
    if at_step is not None and now != at_step and any(now):
        session.called("unused_gradients", nearest())
    session.gradients.pop(id(optimizer), None)


def _load(session: Session) -> None:
    """Cores that this process's own children, such as workers, and other programs took since the first step."""
    now = time.perf_counter()
    if "load_at" not in session.uses:
        session.uses["load_at"] = now, children_s(), Others()
        return
    start, children, others = session.uses["load_at"]
    workers = max(0.0, children_s() - children) / max(now - start, 1e-9)
    # What has not ended yet of the children counts as others there.
    session.load = {"workers": workers, "others": max(0.0, (others.cores() or 0.0) - workers)}


def _end_step(session: Session) -> None:
    now = time.perf_counter()
    parts, cpu = session.line.cut(), time.thread_time()
    step = {"seconds": now - session.step_at, "parts": parts, "cpu": cpu - session.cpu_at, "synced": session.syncing}
    session.steps.append({**step, **session.cpu})
    session.cpu = {}
    session.index += 1
    session.sent_in_step.clear()
    on_lines.stop_counting(session)
    facts = session.loader_facts.get(session.last_loader or -1)
    if facts is not None:
        facts["training"] += 1
        loader = facts["ref"]()
        if facts["training"] == 1 and loader is not None and len(session.loaders) < 4:
            session.loaders.append((loader, facts["site"]))
    if session.index == 1:
        # Whatever came before the first step, such as writing data, doesn't count.
        session.deadline = time.time() + session.seconds
        on_lines.keep_loop(session)
        on_lines.watch(session)
        stop.watch(session)
        on_lines.watch_files(session)
        on_data.watch_nnunet(session)
        _load(session)
    if session.index <= 2:
        # Whatever is odd about somebody's modules must not end their training.
        with contextlib.suppress(Exception):
            (find_roots if session.index == 1 else keep_called)(session)
    if session.index >= 3:
        with contextlib.suppress(Exception):
            _load(session)
    with contextlib.suppress(Exception):
        from . import on_flow  # A torch without what this imports is watched all the same.

        on_flow.watch(session)
    if session.index >= session.steps_wanted:
        stop.finish(session, "steps")
    elif time.time() > session.deadline:
        stop.finish(session, "seconds")
    if session.index == on_lines.COUNTED - 1:
        on_lines.count_calls(session)
    session.choose_syncing()
    session.line.at = session.step_at = time.perf_counter()
    session.cpu_at = time.thread_time()
