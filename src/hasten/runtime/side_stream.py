"""Work on a separate stream, and the capture of that work as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class SideStream:
    """A separate stream, on which work is run or captured, and one of lower priority beside it."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.cuda.Stream(device, priority=-1)
        self._beside = torch.cuda.Stream(device)

    def run(self, body: Callable[[], Tensor]) -> Tensor:
        """Run `body` after the work queued on the current stream; work queued there later waits for it.

        Returns what `body` returns, of any shape on the GPU.
        """
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = body()
        current.wait_stream(self.stream)
        result.record_stream(current)
        return result

    @contextmanager
    def beside(self, body: Callable[[], None]) -> Iterator[None]:
        """Within what is run or captured: queue `body` beside what the block queues; later work waits for both.

        Neither may write what the other one reads. A tensor that `body` makes may be read after the block.
        """
        self._beside.wait_stream(self.stream)
        try:
            with torch.cuda.stream(self._beside):
                body()
            yield
        finally:
            self.stream.wait_stream(self._beside)

    def capture(self, body: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """A graph of what `body` queues, and where its result will lie; nothing of it is run."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        try:
            # The stream is set around the graph, too, which does not give it back where ending the capture fails.
            # By default, an allocation of any other thread (a saver, a validation) would break the capture.
            with (
                torch.cuda.stream(self.stream),
                torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"),
            ):
                result = body()
        except BaseException:
            # The generator would assume that the capture is still active, and refuse to draw outside of it.
            generator = torch.cuda.default_generators[self.stream.device.index]
            generator.graphsafe_set_state(generator.clone_state())
            # Where ending the capture failed, the allocator would continue to use the graph's pool and free nothing.
            with suppress(RuntimeError):
                torch._C._cuda_endAllocateToPool(self.stream.device.index, pool)
                torch._C._cuda_releasePool(self.stream.device.index, pool)
            raise
        return graph, result
