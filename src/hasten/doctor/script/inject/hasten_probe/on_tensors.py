"""Copies to the device, casts, and device values that are read on the host."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from .nested import tensors_in
from .on_lines import loop_line
from .session import Session
from .sites import caller, is_user, site_of, user_frame

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
MAPS = 64
"""Elements from which a tensor counts as a map rather than a few numbers."""
WIDE = 256
"""Elements from which a float64 tensor is worth a word."""
COMPARED = 1 << 20
"""Elements up to which what is sent to the device is compared with what was sent in the step before."""


def install(session: Session) -> None:
    session.wait_for_device = torch.cuda.synchronize
    for name, kind in READS.items():
        session.around(torch.Tensor, name, functools.partial(_read, kind))
    session.around(torch.cuda, "synchronize", functools.partial(_read, "torch.cuda.synchronize()"))
    for name in ("to", "cuda"):
        session.around(torch.Tensor, name, _move)
    for name in ("float", "type", "half", "int", "long"):
        session.around(torch.Tensor, name, _cast)


def _read(kind: str, session: Session, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    session.use(args)
    line = session.line
    # What loads data in this very thread reads nothing from a device, nor does a batch that still lies on the host.
    if line.stack[-1] == "wait" or (args and _on_host(session, args[0])):
        return original(*args, **kwargs)
    frame = caller()
    if str(frame.f_globals.get("__name__", "")).startswith(READERS):
        frame = user_frame(frame)
    if frame is None or not is_user(frame.f_code.co_filename):
        return original(*args, **kwargs)  # Another library, or torch itself, reads.
    line.push("device_reads")
    start = time.perf_counter()
    try:
        result = original(*args, **kwargs)
    finally:
        line.pop()
        tensor = args[0] if args and hasattr(args[0], "device") else None
        _count(session, frame, kind, time.perf_counter() - start, tensor)
    if kind == READS["cpu"]:
        session.batch.add(id(result))
        session.batch_refs.append(result)
    return result


def _on_host(session: Session, tensor: Any) -> bool:
    """Whether it belongs to the batch that was not moved yet, was copied to the host, or is a view into such a one."""
    return id(tensor) in session.batch or id(getattr(tensor, "_base", None)) in session.batch


def _count(session: Session, frame: Any, kind: str, seconds: float, tensor: Any) -> None:
    if session.index == 0:
        return
    row = session.row("reads", site=site_of(frame), kind=kind, validating=session.validating is not None)
    if not row["count"]:
        row.update(device="cuda" if tensor is None else tensor.device.type, loop=loop_line(session, frame))
    row["count"] += 1
    row["seconds"] += seconds
    if tensor is not None:
        row["elements"] = max(row["elements"], tensor.numel())
        session.maps_read = session.maps_read or tensor.numel() >= MAPS
        row["boolean"] = tensor.dtype == torch.bool
    row["steps"] += row["last"] != session.index  # index 0 isn't counted
    row["last"] = session.index


def keep_batch(session: Session, batch: Any, site: str) -> None:
    """Tensors of a batch, on the host until they are moved; float64 ones are noted."""
    session.batch = {id(tensor) for tensor in tensors_in(batch) if tensor.device.type == "cpu"}
    session.batch_refs = [batch]
    session.maps_read = False
    if session.index and session.validating is None:
        for tensor in tensors_in(batch):
            if tensor.dtype == torch.float64 and tensor.numel() >= WIDE:
                session.called("float64", site)


def _move(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    line, frame = session.line, caller()
    line.mark()
    start = time.perf_counter()
    moved = original(self, *args, **kwargs)
    before, after = self.device.type, moved.device.type
    _note_move(session, frame, self, moved, args, kwargs)
    if before == after:
        return moved
    elapsed = time.perf_counter() - start
    if before == "cpu":
        line.mark("host_to_device")
        copies = session.copies
        if session.index > 0 and session.validating is None:
            copies["count"] += 1
            copies["pinned"] += bool(after == "cuda" and self.is_pinned())
            copies["seconds"] += elapsed
    else:
        line.mark("device_reads")
        if after == "cpu" and is_user(frame.f_code.co_filename):
            _count(session, frame, '.to("cpu")', elapsed, self)
    return moved


def _cast(session: Session, original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    result = original(self, *args, **kwargs)
    frame = caller()
    counts = session.index and session.validating is None and hasattr(result, "dtype")
    if counts and is_user(frame.f_code.co_filename):
        _note_cast(session, frame, self, result)
        if id(self) in session.batch:
            session.batch.add(id(result))
            session.batch_refs.append(result)
    return result


def _note_cast(session: Session, frame: Any, before: Any, after: Any) -> None:
    if before.dtype == torch.float64 and after.dtype != before.dtype and before.numel() >= WIDE:
        session.called("float64", site_of(frame))


def _note_move(session: Session, frame: Any, before: Any, after: Any, args: Any, kwargs: Any) -> None:
    """Note, in a training step, which line sends what, waiting for it or not, and whether it was sent before."""
    if not is_user(frame.f_code.co_filename) or session.index == 0:
        return
    if session.validating is None:
        _note_cast(session, frame, before, after)
    if (args and isinstance(args[0], torch.dtype)) or before.device.type not in ("cpu", after.device.type):
        return
    batch = _on_host(session, before)
    session.batch.discard(id(before))
    site = site_of(frame)
    if session.validating is not None or before.is_inference() or (before.device.type == after.device.type != "cpu"):
        return
    session.sent_in_step[site] = number = session.sent_in_step.get(site, 0) + 1
    row = session.row("sent", site=site, number=number)
    row["count"] += 1
    row["batch"] += batch
    row["waits"] += not (kwargs.get("non_blocking") or (args and args[-1] is True))
    row["elements"] = before.numel()
    version = (id(before), before._version)
    row["again"] += version in session.sent_batch
    if batch or id(before) in {each[0] for each in session.sent_batch}:
        session.sent_batch.add(version)
    if not batch and session.index < 8 and before.numel() <= COMPARED and before.is_leaf and not before.requires_grad:
        last = session.sent_last.get((site, number))
        row["compared"] += last is not None
        same = last is not None and last.shape == before.shape and last.dtype == before.dtype
        row["equal"] += bool(same and torch.equal(last, before))  # type: ignore[arg-type]
        session.sent_last[site, number] = before.detach().clone()
