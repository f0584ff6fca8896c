"""Ready batches on the device, and how long the step waited for them."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

import torch
from torch import Tensor

from hasten.feed.ring import Ring
from hasten.observe.ranges import LOADING, Range
from hasten.sample.mixed import MixedProgram
from hasten.sample.program import BatchProgram


class Feed:
    """Iterate over the batches of steps `first` ... `last` - 1.

    Where the arena lies on the training device a batch is made in line: on a GPU it is queued like any other kernel, on
    a CPU the cores are the step's own. Otherwise a thread makes it on the host (or its share of it, where the device
    holds some of the cases), a ring of slots carries it over, and it holds until the next one is asked for. Any step
    can be the first one: nothing has to be skipped.
    """

    def __init__(self, program: BatchProgram | MixedProgram, *, device: torch.device, first: int, last: int) -> None:
        self.program, self.device, self.first, self.last = program, device, first, last
        self.wait_seconds = 0.0
        """Wall time so far in which the step stood still for data."""

    def __iter__(self) -> Generator[tuple[Tensor, Tensor], None, None]:
        source = self._batches()
        try:
            while True:
                begin = time.perf_counter()
                with Range(LOADING):
                    batch = next(source, None)
                self.wait_seconds += time.perf_counter() - begin
                if batch is None:
                    return
                yield batch
        finally:
            source.close()  # ends the ring's thread now, and not when the generator happens to be collected

    def _batches(self) -> Generator[tuple[Tensor, Tensor], None, None]:
        program = self.program
        if isinstance(program, MixedProgram):
            return self._merged(program)
        if program.seed.device.type == self.device.type:
            return program.batches(self.first, self.last)
        return iter(Ring(program.batches(self.first, self.last), self.device))

    def _merged(self, program: MixedProgram) -> Generator[tuple[Tensor, Tensor], None, None]:
        with closing(iter(Ring(program.host_batches(self.first, self.last), self.device))) as shares:
            for share in shares:
                yield program.merged(share)
