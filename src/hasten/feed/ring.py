"""Batches made on the host by one thread and copied to the device ahead of the step."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from hasten.sample.program import BatchProgram

Batch = tuple[Tensor, Tensor]


class Ring:
    """A fixed number of slots, allocated once: one thread fills them in order, the consumer takes them in order.

    A slot is filled again only after the step that read it was queued (an event on the consumer's stream says so), and one
    side stream lives as long as the ring. An error in the thread is raised in the consumer.
    """

    def __init__(self, program: BatchProgram, device: torch.device, *, first: int, last: int, depth: int = 2) -> None:
        self._program, self._device = program, device
        self._first, self._last = first, last
        self._cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._cuda else None
        self._free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._host: list[Batch] = []
        self._slots: list[Batch] = []
        self._ready: list[torch.cuda.Event] = []
        self._used: list[torch.cuda.Event] = []
        self._depth = depth
        self._thread = threading.Thread(target=self._fill, name="hasten-feed", daemon=True)

    def __iter__(self) -> Iterator[Batch]:
        for slot in range(self._depth):
            self._free.put(slot)
        self._thread.start()
        try:
            for _ in range(self._first, self._last):
                slot = self._full.get()
                if isinstance(slot, BaseException):
                    raise slot
                if self._cuda:
                    torch.cuda.current_stream(self._device).wait_event(self._ready[slot])
                yield self._slots[slot]
                if self._cuda:
                    self._used[slot].record(torch.cuda.current_stream(self._device))
                self._free.put(slot)
        finally:
            self._free.put(None)
            self._thread.join()

    def _fill(self) -> None:
        try:
            for step in range(self._first, self._last):
                slot = self._free.get()
                if slot is None:
                    return
                self._store(slot, self._program(step))
                self._full.put(slot)
        except BaseException as error:
            self._full.put(error)

    def _store(self, slot: int, batch: Batch) -> None:
        if len(self._slots) <= slot:
            self._allocate(batch)
        if self._stream is None:
            for target, source in zip(self._slots[slot], batch, strict=True):
                target.copy_(source)
            return
        # The pinned buffer is still being read by the previous copy until its event has passed.
        self._ready[slot].synchronize()
        self._stream.wait_event(self._used[slot])
        for pinned, source in zip(self._host[slot], batch, strict=True):
            pinned.copy_(source)
        with torch.cuda.stream(self._stream):
            for target, pinned in zip(self._slots[slot], self._host[slot], strict=True):
                target.copy_(pinned, non_blocking=True)
        self._ready[slot].record(self._stream)

    def _allocate(self, batch: Batch) -> None:
        image, label = batch
        self._slots.append((torch.empty_like(image, device=self._device), torch.empty_like(label, device=self._device)))
        if self._cuda:
            self._host.append((torch.empty_like(image).pin_memory(), torch.empty_like(label).pin_memory()))
            self._ready.append(torch.cuda.Event())
            self._used.append(torch.cuda.Event())
