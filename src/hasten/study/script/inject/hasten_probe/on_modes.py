"""Watches modes and calls that slow a training loop: anomaly detection, profilers, memory housekeeping, checkpoints."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from .on_lines import note_histogram
from .session import Session
from .sites import is_user, nearest, site_of
from .wrap import wrap


def install(session: Session) -> None:
    import torch

    numpy = sys.modules.get("numpy")
    profiler = torch.autograd.profiler
    for anomaly in (torch.autograd.detect_anomaly, torch.autograd.set_detect_anomaly):
        wrap(anomaly, "__init__", lambda original: _sited(session, original, "anomaly"))
    kind: type
    for kind, name in (
        (torch.profiler.profile, "start"),
        (torch.profiler.profile, "__enter__"),
        (profiler.profile, "__enter__"),
    ):
        wrap(kind, name, lambda original: _sited(session, original, "profiler"))
    wrap(profiler.emit_nvtx, "__enter__", lambda original: _entered(session, original))
    wrap(profiler.emit_nvtx, "__exit__", lambda original: _nvtx_exit(session, original))
    for name in ("gradcheck", "gradgradcheck"):
        wrap(torch.autograd, name, lambda original: _counted(session, original, "gradcheck", "overhead"))
    wrap(torch.cuda, "empty_cache", lambda original: _counted(session, original, "empty_cache", "overhead"))
    wrap(gc, "collect", lambda original: _counted(session, original, "gc_collect", "overhead"))
    for owner, name in ((numpy, "histogram"), (torch, "histc"), (torch, "histogram")):
        wrap(owner, name, lambda original: _histogram(session, original))
    wrap(torch, "save", lambda original: _saving(session, original))
    wrap(torch.nn.DataParallel, "__init__", lambda original: _sited(session, original, "data_parallel"))
    wrap(torch.amp.GradScaler, "__init__", lambda original: _sited(session, original, "grad_scaler"))


def _sited(session: Session, original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Remember where it was last asked for."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if session.live():
            session.mode_sites[kind] = nearest() or session.mode_sites.get(kind, "")
        return original(*args, **kwargs)

    return call


def _histogram(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def histogram(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            if session.live() and session.line.stack[-1] != "wait":
                note_histogram(session, time.perf_counter() - start)

    return histogram


def _entered(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def __enter__(self: Any) -> Any:
        if session.live() and getattr(self, "enabled", True):
            session.mode_sites["nvtx"] = nearest() or session.mode_sites.get("nvtx", "")
            session.uses["nvtx"] = session.uses.get("nvtx", 0) + 1
        return original(self)

    return __enter__


def _nvtx_exit(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def __exit__(self: Any, *args: Any) -> Any:
        if session.live() and getattr(self, "enabled", True):
            session.uses["nvtx"] = session.uses.get("nvtx", 0) - 1
        return original(self, *args)

    return __exit__


def _counted(session: Session, original: Callable[..., Any], kind: str, label: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if not session.live() or not is_user(frame.f_code.co_filename) or session.uses.get("inside"):
            return original(*args, **kwargs)
        session.uses["inside"] = True
        session.line.push(label)
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            session.uses["inside"] = False
            session.line.pop()
            if session.validating is None:
                session.called(kind, site_of(frame), time.perf_counter() - start)

    return call


def _saving(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    from .on_modules import hooks_off

    def save(*args: Any, **kwargs: Any) -> Any:
        if not session.live():
            return original(*args, **kwargs)
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

    return save
