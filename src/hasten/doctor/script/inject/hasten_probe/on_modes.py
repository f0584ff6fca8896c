"""Backward passes with their losses; modes and calls that slow a loop: anomaly detection, profilers, checkpoints."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .on_modules import hooks_off
from .on_rounds import safe_path
from .session import Session
from .sites import caller, is_user, nearest, site_of


def install(session: Session) -> None:
    profiler, scaler = torch.autograd.profiler, getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    owner: Any
    for owner, name, kind in (
        (torch.autograd.detect_anomaly, "__init__", "anomaly"),
        (torch.autograd.set_detect_anomaly, "__init__", "anomaly"),
        (torch.profiler.profile, "start", "profiler"),
        (torch.profiler.profile, "__enter__", "profiler"),
        (profiler.profile, "__enter__", "profiler"),
        (torch.nn.DataParallel, "__init__", "data_parallel"),
        (scaler, "__init__", "grad_scaler"),
    ):
        session.around(owner, name, partial(_sited, kind))
    session.around(torch.autocast, "__init__", _autocast)
    session.around(profiler.emit_nvtx, "__enter__", partial(_nvtx, 1))
    session.around(profiler.emit_nvtx, "__exit__", partial(_nvtx, -1))
    for owner, name, kind in (
        (torch.autograd, "gradcheck", "gradcheck"),
        (torch.autograd, "gradgradcheck", "gradcheck"),
        (torch.cuda, "empty_cache", "empty_cache"),
        (gc, "collect", "gc_collect"),
    ):
        session.around(owner, name, partial(_counted, kind))
    session.around(torch, "save", _save)
    session.around(scaler, "scale", _scale)
    session.around(torch.autograd, "backward", _backward)
    session.around(torch.autograd, "grad", _grad)
    for name in ("all_reduce", "all_gather", "all_gather_into_tensor", "broadcast", "barrier", "reduce"):
        session.around(torch.distributed, name, _collective)


def _sited(kind: str, session: Session, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Remember where it was last asked for."""
    session.mode_sites[kind] = nearest() or session.mode_sites.get(kind, "")
    return original(*args, **kwargs)


def _autocast(
    session: Session, original: Callable[..., Any], self: Any, device_type: str, *args: Any, **kwargs: Any
) -> Any:
    """Remember autocast for a GPU, which torch switches off where there is none, and one that the script leaves off."""
    if device_type == "cuda" and nearest():
        on = kwargs.get("enabled", args[1] if len(args) > 1 else True)
        session.mode_sites["cuda_autocast" if on else "cuda_autocast_off"] = nearest()
    return original(self, device_type, *args, **kwargs)


def _nvtx(change: int, session: Session, original: Callable[..., Any], self: Any, *args: Any) -> Any:
    if getattr(self, "enabled", True):
        session.uses["nvtx"] = session.uses.get("nvtx", 0) + change
        if change > 0:
            session.mode_sites["nvtx"] = nearest() or session.mode_sites.get("nvtx", "")
    return original(self, *args)


def _counted(kind: str, session: Session, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    frame = caller()
    if not is_user(frame.f_code.co_filename) or session.uses.get("inside"):
        return original(*args, **kwargs)
    session.uses["inside"] = True
    session.line.push("overhead")
    start = time.perf_counter()
    try:
        return original(*args, **kwargs)
    finally:
        session.uses["inside"] = False
        session.line.pop()
        if session.validating is None:
            session.called(kind, site_of(frame), time.perf_counter() - start)


def _save(session: Session, original: Callable[..., Any], obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
    file = safe_path(session, f)
    line = session.line
    over, line.over = line.over, ""
    line.push("checkpoint")
    start = time.perf_counter()
    try:
        # A module that is pickled whole must not take the probe's hooks along.
        with hooks_off(session):
            return original(obj, file, *args, **kwargs)
    finally:
        line.pop()
        line.over = over
        if file is not f:
            with contextlib.suppress(OSError):
                os.unlink(file)  # noqa: PTH108
        elapsed = time.perf_counter() - start
        session.saves.append({"step": session.index, "site": nearest(), "seconds": elapsed})


def _backward(session: Session, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any) -> Any:
    line, spent = session.line, session.cpu
    session.goes_backward()
    session.leave_validation()
    session.use(tensors)
    if session.loss is None:
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


def _keep_loss(session: Session, loss: Any) -> None:
    """Keep a step's loss, without reading it from the device."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        session.loss = loss.detach().clone()


def _scale(session: Session, original: Callable[..., Any], self: Any, outputs: Any) -> Any:
    _keep_loss(session, outputs)
    return original(self, outputs)


def _grad(session: Session, original: Callable[..., Any], outputs: Any, *args: Any, **kwargs: Any) -> Any:
    session.use(outputs)
    session.goes_backward()
    return original(outputs, *args, **kwargs)


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
