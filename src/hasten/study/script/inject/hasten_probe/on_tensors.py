"""Copies to the device, and device values that user code reads on the host."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from .session import Session
from .sites import is_user, site_of
from .wrap import wrap

READS = {
    "item": ".item()",
    "cpu": ".cpu()",
    "numpy": ".numpy()",
    "tolist": ".tolist()",
    "nonzero": ".nonzero()",
    "__array__": "numpy.asarray()",
    "__float__": "float()",
    "__int__": "int()",
    "__bool__": "bool()",
    "__repr__": "print()",
    "__format__": "format",
}


def install(session: Session) -> None:
    import torch

    session.wait_for_device = torch.cuda.synchronize
    for name, told in READS.items():
        wrap(torch.Tensor, name, lambda original, told=told: _reading(session, original, told))  # type: ignore[misc]
    wrap(torch.cuda, "synchronize", lambda original: _reading(session, original, "torch.cuda.synchronize()"))
    for name in ("to", "cuda"):
        wrap(torch.Tensor, name, lambda original: _moving(session, original))


def _reading(session: Session, original: Callable[..., Any], told: str) -> Callable[..., Any]:
    def read(*args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        line = session.line
        if not session.live() or line.stack[-1] == "wait" or not is_user(frame.f_code.co_filename):
            return original(*args, **kwargs)  # What loads data in this very thread reads nothing from a device.
        line.push("device_reads")
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            line.pop()
            device = args[0].device.type if args and hasattr(args[0], "device") else "cuda"
            _count(session, frame, told, time.perf_counter() - start, device)

    return read


def _count(session: Session, frame: Any, told: str, seconds: float, device: str) -> None:
    if session.validating is not None or session.index == 0:
        return
    key = (site_of(frame), told)
    known = session.reads.get(key)
    if known is None:
        known = {"site": key[0], "kind": told, "device": device, "count": 0, "seconds": 0.0, "steps": 0, "last": -1}
        session.reads[key] = known
    known["count"] += 1
    known["seconds"] += seconds
    if known["last"] != session.index:
        known["last"] = session.index
        known["steps"] += 1


def _moving(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.live():
            return original(self, *args, **kwargs)
        line = session.line
        line.mark()
        start = time.perf_counter()
        moved = original(self, *args, **kwargs)
        before, after = self.device.type, moved.device.type
        if before == after:
            return moved
        took = time.perf_counter() - start
        if before == "cpu":
            line.mark("host_to_device")
            copies = session.copies
            if session.index > 0 and session.validating is None:
                copies["count"] += 1
                copies["bytes"] += self.numel() * self.element_size()
                copies["pinned"] += bool(after == "cuda" and self.is_pinned())
                copies["seconds"] += took
        else:
            line.mark("device_reads")
            frame = sys._getframe(1)
            if after == "cpu" and is_user(frame.f_code.co_filename):
                _count(session, frame, '.to("cpu")', took, before)
        return moved

    return move
