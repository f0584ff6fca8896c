"""Backward passes: their time, the losses, and what was left switched on meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from .session import LOSSES, Session
from .wrap import wrap


def install(session: Session) -> None:
    import torch

    wrap(torch.autograd, "backward", lambda original: _backward(session, original))
    wrap(torch.autograd, "grad", lambda original: _grad(session, original))
    for name in ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "barrier", "reduce"):
        if torch.distributed.is_available():
            wrap(torch.distributed, name, lambda original: _collective(session, original))


def _backward(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not session.live():
            return original(tensors, *args, **kwargs)
        line = session.line
        session.leave_validation()
        session.use(tensors)
        _keep_loss(session, tensors)
        _note_modes(session)
        line.push("backward")
        start, cpu = time.perf_counter(), time.thread_time()
        try:
            return original(tensors, *args, **kwargs)
        finally:
            session.sync()
            line.pop()
            session.cpu["backward"] = session.cpu.get("backward", 0.0) + time.thread_time() - cpu
            session.cpu["backward_wall"] = session.cpu.get("backward_wall", 0.0) + time.perf_counter() - start
            line.relabel("optimizer" if len(line.stack) > 1 else "overhead")

    return backward


def _grad(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            session.use(outputs)
        return original(outputs, *args, **kwargs)

    return grad


def _keep_loss(session: Session, tensors: Any) -> None:
    import torch

    loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and len(session.losses) < LOSSES:
        session.losses.append(loss.detach().clone())
        session.loss_steps.append(session.index)


def _note_modes(session: Session) -> None:
    """What slows every step while it is on. A profiler that runs in a few steps only is as it should be."""
    import torch

    if session.index == 0:
        return
    on = {
        "anomaly": torch.is_anomaly_enabled(),
        "profiler": bool(torch._C._autograd._profiler_enabled()) or sys.getprofile() is not None,
        "nvtx": session.uses.get("nvtx", 0) > 0,
    }
    for name, active in on.items():
        if active:
            entry = session.modes.setdefault(name, {"steps": 0, "last": -1})
            if entry["last"] != session.index:
                entry["last"] = session.index
                entry["steps"] += 1


def _collective(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not session.live():
            return original(*args, **kwargs)
        session.line.push("gradient_sync")
        try:
            return original(*args, **kwargs)
        finally:
            session.line.pop()

    return collective
