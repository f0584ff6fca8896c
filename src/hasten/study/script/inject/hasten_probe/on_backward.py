"""Backward passes: their time, the losses, and what was left switched on meanwhile."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from .session import LOSSES, Session


def install(session: Session) -> None:
    session.around(torch.autograd, "backward", _backward)
    session.around(torch.autograd, "grad", _grad)
    for name in ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "barrier", "reduce"):
        session.around(torch.distributed, name, _collective)


def _backward(session: Session, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    line, spent = session.line, session.cpu
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
        spent["backward"] = spent.get("backward", 0.0) + time.thread_time() - cpu
        spent["backward_wall"] = spent.get("backward_wall", 0.0) + time.perf_counter() - start
        line.relabel("optimizer" if len(line.stack) > 1 else "overhead")


def _grad(session: Session, original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
    session.use(outputs)
    return original(outputs, *args, **kwargs)


def _keep_loss(session: Session, tensors: Any) -> None:
    loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
    if isinstance(loss, torch.Tensor) and loss.numel() == 1 and len(session.losses) < LOSSES:
        session.losses.append(loss.detach().clone())
        session.loss_steps.append(session.index)


def _note_modes(session: Session) -> None:
    """What slows every step while it is on. A profiler that runs in a few steps only is as it should be."""
    if session.index == 0:
        return
    on = {
        "anomaly": torch.is_anomaly_enabled(),
        "profiler": bool(torch._C._autograd._profiler_enabled()) or sys.getprofile() is not None,
        "nvtx": session.uses.get("nvtx", 0) > 0,
    }
    for name in [name for name, active in on.items() if active]:
        entry = session.modes.setdefault(name, {"steps": 0, "last": -1})
        entry["steps"] += entry["last"] != session.index
        entry["last"] = session.index


def _collective(session: Session, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    session.line.push("gradient_sync")
    try:
        return original(*args, **kwargs)
    finally:
        session.line.pop()
