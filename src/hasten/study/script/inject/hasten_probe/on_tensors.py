"""Copies to the device, casts, and device values that are read on the host."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from .on_lines import loop_line
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
READERS = ("ignite", "monai.engines", "monai.handlers", "torch.utils.tensorboard", "tensorboardX")
"""Libraries whose reads are attributed to the user's line that calls them."""
WIDE = 256
"""Elements from which a float64 tensor is worth a word."""
COMPARED = 1 << 20
"""Elements up to which what is sent to the device is compared with what was sent in the step before."""
_MANY = 64
"""Elements from which a read is of a picture, a map or a batch, and not of some numbers."""


def install(session: Session) -> None:
    import torch

    session.wait_for_device = torch.cuda.synchronize
    for name, kind in READS.items():
        wrap(torch.Tensor, name, lambda original, kind=kind: _reading(session, original, kind))  # type: ignore[misc]
    wrap(torch.cuda, "synchronize", lambda original: _reading(session, original, "torch.cuda.synchronize()"))
    for name in ("to", "cuda"):
        wrap(torch.Tensor, name, lambda original: _moving(session, original))
    for name in ("float", "type", "half", "int", "long"):
        wrap(torch.Tensor, name, lambda original: _casting(session, original))


def _reading(session: Session, original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    def read(*args: Any, **kwargs: Any) -> Any:
        session.use(args)
        line = session.line
        # What loads data in this very thread reads nothing from a device, nor does a batch that still lies on the host.
        if not session.live() or line.stack[-1] == "wait" or (args and _on_host(session, args[0])):
            return original(*args, **kwargs)
        frame: Any = sys._getframe(1)
        if not is_user(frame.f_code.co_filename):
            frame = _reader(frame)
            if frame is None:
                return original(*args, **kwargs)
        line.push("device_reads")
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            line.pop()
            tensor = args[0] if args and hasattr(args[0], "device") else None
            _count(session, frame, kind, time.perf_counter() - start, tensor)

    return read


def _on_host(session: Session, tensor: Any) -> bool:
    """Is it of the batch that was not moved yet, or a view into it?"""
    return id(tensor) in session.batch or id(getattr(tensor, "_base", None)) in session.batch


def _reader(frame: Any) -> Any:
    """The user's frame that called a library which reads; None if another library, or torch itself, reads."""
    name = str(frame.f_globals.get("__name__", ""))
    if not name.startswith(READERS):
        return None
    while frame is not None and not is_user(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _count(session: Session, frame: Any, kind: str, seconds: float, tensor: Any) -> None:
    if session.index == 0:
        return
    validating = session.validating is not None
    key = (site_of(frame), kind, validating)
    entry = session.reads.get(key)
    if entry is None:
        device = "cuda" if tensor is None else tensor.device.type
        entry = {"site": key[0], "kind": kind, "device": device, "count": 0, "seconds": 0.0, "steps": 0, "last": -1}
        entry.update(validating=validating, elements=0, loop=loop_line(session, frame), boolean=False)
        session.reads[key] = entry
    entry["count"] += 1
    entry["seconds"] += seconds
    if tensor is not None:
        entry["elements"] = max(entry["elements"], tensor.numel())
        entry["boolean"] = str(tensor.dtype) == "torch.bool"
    if entry["last"] != session.index:
        entry["last"] = session.index
        entry["steps"] += 1


def keep_batch(session: Session, batch: Any, site: str) -> None:
    """Tensors of a batch, on the host until they are moved; float64 ones are noted."""
    import torch

    session.batch = {id(tensor) for tensor in tensors_in(batch) if tensor.device.type == "cpu"}
    session.batch_kept = [batch]
    if session.index and session.validating is None:
        for tensor in tensors_in(batch):
            if tensor.dtype == torch.float64 and tensor.numel() >= WIDE:
                session.called("float64", site)


def tensors_in(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors_in(each)


def _moving(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.live():
            return original(self, *args, **kwargs)
        line = session.line
        line.mark()
        start = time.perf_counter()
        moved = original(self, *args, **kwargs)
        before, after = self.device.type, moved.device.type
        _note_move(session, self, moved, args, kwargs)
        if before == after:
            return moved
        elapsed = time.perf_counter() - start
        if before == "cpu":
            line.mark("host_to_device")
            copies = session.copies
            if session.index > 0 and session.validating is None:
                copies["count"] += 1
                copies["bytes"] += self.numel() * self.element_size()
                copies["pinned"] += bool(after == "cuda" and self.is_pinned())
                copies["seconds"] += elapsed
        else:
            line.mark("device_reads")
            frame = sys._getframe(1)
            if after == "cpu" and is_user(frame.f_code.co_filename):
                _count(session, frame, '.to("cpu")', elapsed, self)
        return moved

    return move


def _casting(session: Session, original: Callable[..., Any]) -> Callable[..., Any]:
    def cast(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if session.live() and session.index and session.validating is None and hasattr(result, "dtype"):
            frame = sys._getframe(1)
            if is_user(frame.f_code.co_filename):
                _note_cast(session, frame, self, result)
                if id(self) in session.batch:
                    session.batch.add(id(result))
                    session.batch_kept.append(result)
        return result

    return cast


def _note_cast(session: Session, frame: Any, before: Any, after: Any) -> None:
    import torch

    if before.dtype == torch.float64 and after.dtype != before.dtype and before.numel() >= WIDE:
        session.called("float64", site_of(frame))


def _note_move(session: Session, before: Any, after: Any, args: Any, kwargs: Any) -> None:
    """In a training step: which line sends what, waiting for it or not, and whether it was sent before."""
    import torch

    frame = sys._getframe(2)
    if not is_user(frame.f_code.co_filename) or session.index == 0:
        return
    if session.validating is None:
        _note_cast(session, frame, before, after)
    to_device = not args or not isinstance(args[0], torch.dtype)
    if not to_device or before.device.type not in ("cpu", after.device.type):
        return
    batch = _on_host(session, before)
    session.batch.discard(id(before))
    site = site_of(frame)
    if session.validating is not None or (before.device.type == after.device.type != "cpu"):
        return
    session.sent_in_step[site] = number = session.sent_in_step.get(site, 0) + 1
    key = f"{site} {number}"
    entry = session.sent.setdefault(
        key, {"site": site, "count": 0, "batch": 0, "waits": 0, "again": 0, "compared": 0, "equal": 0, "elements": 0}
    )
    entry["count"] += 1
    entry["batch"] += batch
    entry["waits"] += not (kwargs.get("non_blocking") or (args and args[-1] is True))
    entry["elements"] = before.numel()
    version = (id(before), before._version)
    entry["again"] += version in session.sent_batch
    if batch or id(before) in {each[0] for each in session.sent_batch}:
        session.sent_batch.add(version)
    if not batch and session.index < 8 and before.numel() <= COMPARED and before.is_leaf and not before.requires_grad:
        last = session.sent_last.get(key)
        entry["compared"] += last is not None
        same = last is not None and last.shape == before.shape and last.dtype == before.dtype
        entry["equal"] += bool(same and torch.equal(last, before))  # type: ignore[arg-type]
        session.sent_last[key] = before.detach().clone()
