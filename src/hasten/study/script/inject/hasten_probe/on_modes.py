"""Watches modes and calls that slow a training loop: anomaly detection, profilers, memory housekeeping, checkpoints."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .on_lines import note_histogram
from .on_modules import hooks_off
from .session import Session
from .sites import caller, is_user, nearest, site_of


def install(session: Session) -> None:
    profiler = torch.autograd.profiler
    owner: Any
    for owner, name, kind in (
        (torch.autograd.detect_anomaly, "__init__", "anomaly"),
        (torch.autograd.set_detect_anomaly, "__init__", "anomaly"),
        (torch.profiler.profile, "start", "profiler"),
        (torch.profiler.profile, "__enter__", "profiler"),
        (profiler.profile, "__enter__", "profiler"),
        (torch.nn.DataParallel, "__init__", "data_parallel"),
        (torch.amp.GradScaler, "__init__", "grad_scaler"),
    ):
        session.around(owner, name, partial(_sited, kind))
    session.around(profiler.emit_nvtx, "__enter__", partial(_nvtx, 1))
    session.around(profiler.emit_nvtx, "__exit__", partial(_nvtx, -1))
    for owner, name, kind in (
        (torch.autograd, "gradcheck", "gradcheck"),
        (torch.autograd, "gradgradcheck", "gradcheck"),
        (torch.cuda, "empty_cache", "empty_cache"),
        (gc, "collect", "gc_collect"),
    ):
        session.around(owner, name, partial(_counted, kind))
    for owner, name in ((sys.modules.get("numpy"), "histogram"), (torch, "histc"), (torch, "histogram")):
        session.around(owner, name, _histogram)
    session.around(torch, "save", _save)


def _sited(kind: str, session: Session, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Remember where it was last asked for."""
    session.mode_sites[kind] = nearest() or session.mode_sites.get(kind, "")
    return original(*args, **kwargs)


def _histogram(session: Session, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    start = time.perf_counter()
    try:
        return original(*args, **kwargs)
    finally:
        if session.line.stack[-1] != "wait":
            note_histogram(session, time.perf_counter() - start)


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


def _save(session: Session, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    line = session.line
    over, line.over = line.over, ""
    line.push("checkpoint")
    start = time.perf_counter()
    try:
        # A module that is pickled whole must not take the probe's hooks along.
        with hooks_off(session):
            return original(*args, **kwargs)
    finally:
        line.pop()
        line.over = over
        elapsed = time.perf_counter() - start
        session.saves.append({"step": session.index, "site": nearest(), "seconds": elapsed})
