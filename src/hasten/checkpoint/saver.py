"""Asynchronous checkpoints: copied at the step boundary, written by a thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from copy import copy
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from hasten.devices import kind_of
from hasten.observe.ranges import CHECKPOINT, Range

log = logging.getLogger(__name__)

Write = Callable[[dict[str, Any]], object]
"""Writes a content whose tensors lie in host memory: `Checkpoints.write`, or `partial(write_checkpoint, path)`."""


class Saver:
    """`save` returns as soon as the content is the thread's own; `close` (or the end of a `with`) waits for the disk.

    Saves are written one after another, in their order. While one is written, another one may wait in host memory; the
    next `save` waits for room. What went wrong in the thread is raised by a later `save`, `wait` or `close`, and a save
    that waits behind a failed one is not written: it may count on what that one should have left. A process that ends
    without `close` still finishes the writes; one that is killed leaves the files before them.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._saves: list[Future[None]] = []
        self._streams: dict[torch.device, torch.Stream] = {}

    @Range(CHECKPOINT)
    def save(self, content: dict[str, Any], write: Write) -> None:
        """Copy the tensors of `content` to host memory and hand the copy to a thread that calls `write` with it.

        Call it between two steps. On a CPU the copy is complete on return. On a GPU it is queued, and later work on the
        device waits for it, so the host continues at once and the next step can't change the copy. Raises the error of
        a save before this one; this one is then not started.
        """
        while len(self._saves) > 1 or (self._saves and self._saves[0].done()):
            self._finish_first()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="hasten-save")
        before = self._saves[-1] if self._saves else None
        self._saves.append(self._thread.submit(_write, before, write, *self._copied(content)))

    def wait(self) -> None:
        """Wait until all saves are on the disk. Raises the first error, once."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        while self._saves:
            self._finish_first()

    def _finish_first(self) -> None:
        try:
            self._saves.pop(0).result()
        except BaseException:
            wait(self._saves)  # none of them is written
            self._saves.clear()
            raise

    def close(self) -> None:
        """`wait`, under the name that every resource has; the saver may be used again."""
        self.wait()

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.wait()
        except Exception as failure:
            if error is None:
                raise
            # The exception that ended the block must not be replaced by this one.
            log.warning("the last checkpoint could not be written: %s", failure)

    def _copied(self, content: dict[str, Any]) -> tuple[dict[str, Any], list[torch.Event]]:
        """The copy, and what has to be waited for before it may be read."""
        copies: dict[Any, Tensor] = {}
        used: dict[torch.device, torch.Stream] = {}

        def of_tensor(tensor: Tensor) -> Tensor:
            # Names that share memory (tied weights, a module that has two names) share it in the copy too.
            where = (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset())
            key = (*where, tensor.shape, tensor.stride(), tensor.dtype)
            if key not in copies:
                plain = tensor.detach()
                host = plain.clone if plain.device.type == "cpu" else plain.cpu
                copies[key] = self._from_gpu(plain, used) if kind_of(plain.device).streams else host()
            return copies[key]

        snapshot = _mapped(content, of_tensor)
        for device, stream in used.items():
            torch.get_device_module(device).current_stream(device).wait_stream(stream)
        return snapshot, [stream.record_event() for stream in used.values()]

    def _from_gpu(self, tensor: Tensor, used: dict[torch.device, torch.Stream]) -> Tensor:
        """Pinned memory that the device's own stream of copies fills."""
        device, module = tensor.device, torch.get_device_module(tensor.device)
        if device not in used:
            used[device] = self._streams.setdefault(device, module.Stream(device))
            used[device].wait_stream(module.current_stream(device))
        with module.stream(used[device]):
            return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def _write(before: Future[None] | None, write: Write, content: dict[str, Any], ready: list[torch.Event]) -> None:
    if before is not None:
        before.result()
    for event in ready:
        event.synchronize()
    write(content)


def _mapped(value: Any, of_tensor: Callable[[Tensor], Tensor]) -> Any:
    """Copies of the same containers with their tensors replaced."""
    if isinstance(value, Tensor):
        return of_tensor(value)
    if isinstance(value, dict):
        fresh = copy(value)  # with the attribute that a module's state dict carries
        for key, item in value.items():
            fresh[key] = _mapped(item, of_tensor)
        return fresh
    if type(value) in (list, tuple):
        return type(value)(_mapped(item, of_tensor) for item in value)
    return value
