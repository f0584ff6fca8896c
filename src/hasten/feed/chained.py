"""Batches of a compiled chain on the training device."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Protocol

import torch
from torch import Tensor

from hasten.feed.ring import Ring
from hasten.observe.ranges import LOADING, Range

Batch = dict[str, Tensor]


class MakesBatches(Protocol):
    """A `ChainProgram`, or what has its `batches` and `device`."""

    @property
    def device(self) -> torch.device: ...

    def batches(self, first: int, last: int) -> Generator[Batch, None, None]: ...


class ChainFeed:
    """Iterate over the batches, (B, C, *S) by key, of steps `first` ... `last` - 1.

    Made in line where the data lie on the training device; otherwise by a thread on the host, with a ring of slots that
    carries them over, and a batch holds until the next one is asked for.
    """

    def __init__(self, program: MakesBatches, *, device: torch.device | str, first: int = 0, last: int) -> None:
        self.program, self.device, self.first, self.last = program, torch.device(device), first, last
        self.wait_seconds = 0.0
        """Wall time so far in which the step stood still for data."""

    def __iter__(self) -> Iterator[Batch]:
        with closing(self._batches()) as source:
            while True:
                begin = time.perf_counter()
                with Range(LOADING):
                    batch = next(source, None)
                self.wait_seconds += time.perf_counter() - begin
                if batch is None:
                    return
                yield batch

    def _batches(self) -> Generator[Batch, None, None]:
        made = self.program.batches(self.first, self.last)
        if self.program.device.type == self.device.type:
            return made
        return self._carried(made)

    def _carried(self, made: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        names: list[str] = []

        def plain() -> Generator[tuple[Tensor, ...], None, None]:
            for batch in made:
                names[:] = batch
                yield tuple(batch.values())

        with closing(iter(Ring(plain(), self.device))) as carried:
            for values in carried:
                yield dict(zip(names, values, strict=True))
