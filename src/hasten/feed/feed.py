"""Ready batches on the device, and how long the step waited for them."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

from hasten.augment.chain import Batch
from hasten.augment.program import Program
from hasten.feed.ring import Ring
from hasten.observe.ranges import LOADING, Range


class Feed:
    """Iterate over the batches, (B, C, *S) by key, of steps `first` ... `last` - 1 of a program.

    If the cases are on the training device, a batch is made in the calling thread: on a GPU it is queued like any other
    kernel, on a CPU the cores belong to the step. Otherwise a thread begins it on the host, a ring of slots copies it,
    the device finishes it, and it stays valid until the next one is requested. Iteration can start at any step. Where
    patches change size or cases are redealt, the step waits for the first batch from the host.
    """

    def __init__(self, program: Program, *, first: int = 0, last: int, depth: int = 2) -> None:
        """depth: slots of the ring."""
        self.program, self.first, self.last, self.depth = program, first, last, depth
        self.wait_seconds = 0.0
        """Wall time so far in which the step stood still for data."""

    def __iter__(self) -> Generator[Batch, None, None]:
        with closing(self._batches()) as source:  # ends the ring's thread now, not when the generator is collected
            while True:
                begin = time.perf_counter()
                with Range(LOADING):
                    batch = next(source, None)
                self.wait_seconds += time.perf_counter() - begin
                if batch is None:
                    return
                yield batch

    def _batches(self) -> Generator[Batch, None, None]:
        for piece in self.program.pieces(self.first, self.last):
            segment = piece.segment
            begun = segment.prepare(piece.first, piece.last)
            carried = segment.prepared_on_host
            with closing(iter(Ring(begun, self.program.device, depth=self.depth)) if carried else begun) as prepared:
                yield from map(segment.finish, prepared)
            del piece, segment, begun, prepared  # the next round's cases must not find this one's still in memory
