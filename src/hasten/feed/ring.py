"""Batches made on the host by one thread and copied to the device ahead of the step."""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils import _pytree as pytree

from hasten.devices import kind_of

Batch = TypeVar("Batch")
"""Tensors in tuples, dicts and named tuples."""


class Ring(Generic[Batch]):
    """A fixed number of slots, allocated once: one thread fills them in order, the consumer takes them in order.

    A batch stays valid until the consumer requests the next one. Its slot is refilled only after the work that the
    consumer had queued by then has run (seen by an event on its stream), and one side stream lives as long as the ring.
    An error in the thread is raised in the consumer, with the thread's traceback. A ring can be iterated once.
    """

    def __init__(self, batches: Generator[Batch, None, None], device: torch.device, *, depth: int = 2) -> None:
        assert depth >= 1
        self._batches, self._device = batches, device
        self._module = torch.get_device_module(device) if kind_of(device).streams else None
        self._stream = self._module.Stream(device) if self._module is not None else None
        if self._stream is not None:
            self._device = self._stream.device  # "cuda" alone would mean another device in the thread
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
        self._ended = False
        self._host: list[Batch] = []
        self._slots: list[Batch] = []
        self._ready: list[torch.Event] = []
        self._used: list[torch.Event] = []
        self._depth = depth
        self._thread = threading.Thread(target=self._fill, name="hasten-feed", daemon=True)

    def __iter__(self) -> Generator[Batch, None, None]:
        for slot in range(self._depth):
            self._free.put(slot)
        # Of an iterator that a program keeps to its end: a thread that frees tensors while Python shuts down aborts it.
        atexit.register(self._end)
        self._thread.start()
        try:
            while (slot_or_error := self._full.get()) is not None:
                if isinstance(slot_or_error, BaseException):
                    raise slot_or_error
                self._await_copy(slot_or_error)
                yield self._slots[slot_or_error]
                if self._module is not None:
                    self._used[slot_or_error].record(self._module.current_stream(self._device))
                self._free.put(slot_or_error)
        finally:
            self._end()
            atexit.unregister(self._end)

    def _end(self) -> None:
        self._ended = True
        self._free.put(0)  # wakes a thread that waits for a slot
        self._thread.join()

    def _await_copy(self, slot: int) -> None:
        """Let the consumer's stream, not the host, wait until the slot is filled."""
        if self._module is None:
            return
        stream = self._module.current_stream(self._device)
        stream.wait_event(self._ready[slot])
        for tensor in pytree.tree_leaves(self._slots[slot]):
            # The slots come from the side stream's memory: without this they could be given away, when the ring is
            # dropped, while the consumer's last step still reads them.
            tensor.record_stream(stream)

    def _fill(self) -> None:
        try:
            with self._module.device(self._device) if self._module is not None else contextlib.nullcontext():
                for batch in self._batches:
                    slot = self._free.get()
                    if self._ended:
                        return
                    self._store(slot, batch)
                    self._full.put(slot)
            self._full.put(None)
        except BaseException as error:
            self._full.put(error)

    def _store(self, slot: int, batch: Batch) -> None:
        if len(self._slots) <= slot:
            self._allocate(batch)
        if self._module is None or self._stream is None:
            for target, source in _pairs(self._slots[slot], batch):
                target.copy_(source)
            return
        # The pinned buffer is still being read by the previous copy until its event has passed.
        self._ready[slot].synchronize()
        self._stream.wait_event(self._used[slot])
        for pinned, source in _pairs(self._host[slot], batch):
            pinned.copy_(source)
        with self._module.stream(self._stream):
            for target, pinned in _pairs(self._slots[slot], self._host[slot]):
                target.copy_(pinned, non_blocking=True)
        self._ready[slot].record(self._stream)

    def _allocate(self, batch: Batch) -> None:
        # From the side stream's memory: a block of the consumer's stream may still be in use by kernels queued there.
        with self._module.stream(self._stream) if self._module is not None else contextlib.nullcontext():
            self._slots.append(_like(batch, device=self._device))
        if self._module is not None:
            self._host.append(_like(batch, device="cpu", pin_memory=True))
            self._ready.append(self._module.Event())
            self._used.append(self._module.Event())


def _like(batch: Any, **options: Any) -> Any:
    return pytree.tree_map(lambda value: torch.empty_like(value, **options), batch)


def _pairs(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    return zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
