"""A network's passes over windows on a GPU: how many go through it at once, and as one CUDA graph for each shape."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hasten.files import first_line
from hasten.prediction.infer import Inference, network_scores
from hasten.prediction.scores import first_output
from hasten.prediction.windows import available_bytes
from hasten.runtime.device import seconds_of
from hasten.runtime.measure import certainly_faster, compared
from hasten.runtime.out_of_memory import out_of_memory_ends_block
from hasten.runtime.side_stream import SideStream

log = logging.getLogger(__name__)

_HIGHEST = 64
_LEAST_SAVED = 0.05
"""Smallest share of a window's time that a doubled batch has to save."""
_SHARE = 0.25
"""Share of free memory that a batch may take: sums and the images need the rest."""
_PASSES = 3


def best_batch(trial: Callable[[int], tuple[float, int]], free: int) -> int:
    """The batch from which on doubling it gains nothing or takes too much memory.

    trial: runs this many windows, and gives seconds and bytes at the peak. free: bytes. One window is always allowed.
    """
    count, (seconds, num_bytes) = 1, trial(1)
    while count < _HIGHEST and 2 * num_bytes <= _SHARE * free:
        doubled = None
        with out_of_memory_ends_block():
            doubled = trial(2 * count)
        if doubled is None or doubled[0] / 2 > (1 - _LEAST_SAVED) * seconds:
            break
        count, (seconds, num_bytes) = 2 * count, doubled
    return count


def measured_batch(network: nn.Module, channels: int, inference: Inference) -> int:
    """The best batch of windows on its device, a GPU. On a CPU, a batch gains nothing from more voxels than `Windows`
    allows it.
    """
    if inference.device.type != "cuda":
        return inference.batch_size
    count = best_batch(lambda count: _trial(network, channels, inference, count), available_bytes(inference.device))
    log.info("%d windows of %s go through the network at once", count, inference.window)
    torch.cuda.empty_cache()
    return count


@torch.inference_mode()
def _trial(network: nn.Module, channels: int, inference: Inference, count: int) -> tuple[float, int]:
    generator = torch.Generator(inference.device).manual_seed(0)
    batch = torch.randn(count, channels, *inference.window, device=inference.device, generator=generator)
    before = torch.cuda.memory_allocated(inference.device)
    torch.cuda.reset_peak_memory_stats(inference.device)
    network_scores(network, batch, inference)  # libraries choose their algorithms for this shape
    num_bytes = torch.cuda.max_memory_allocated(inference.device) - before
    seconds = [seconds_of(lambda: network_scores(network, batch, inference), inference.device) for _ in range(_PASSES)]
    return min(seconds), num_bytes


_WARM_UP = 3
"""Batches of a shape that run as they are, so that libraries have made their handles and workspaces."""
_SHAPES = 4
"""Graphs at most, as each holds the memory of a pass."""
_SECONDS = 2.0
"""Time limit of comparing a graph with the pass."""
_LEAST = 0.02
"""Smallest gain that counts."""


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    image: Tensor
    """What the graph reads."""
    scores: Tensor
    """What it writes."""

    def __call__(self, image: Tensor) -> Tensor:
        self.image.copy_(image)
        self.graph.replay()
        return self.scores.clone()


class GraphedNetwork(nn.Module):
    """`network(image)`, its first output alone. Runs without a graph where capturing fails, and where the graph gives
    other scores or is not faster.
    """

    def __init__(self, network: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.network, self.device = network, device
        self._graphs: dict[tuple[int, ...], _Graph | None] = {}
        """Graphs by shape; None for a shape that runs without one."""
        self._seen = Counter[tuple[int, ...]]()
        self._side_stream: SideStream | None = None

    def forward(self, image: Tensor) -> Tensor:
        """(B, K, *S) scores of (B, C, *S), in inference mode."""
        shape = tuple(image.shape)
        if (graph := self._graphs.get(shape)) is not None:
            return graph(image)
        if shape in self._graphs or len(self._graphs) >= _SHAPES:
            return self._scores(image)
        if self._side_stream is None:
            self._side_stream = SideStream(self.device)
        self._seen[shape] += 1
        scores = self._side_stream.run(lambda: self._scores(image))
        if self._seen[shape] >= _WARM_UP:
            self._graphs[shape] = self._captured(self._side_stream, image, scores)
        return scores

    def _scores(self, image: Tensor) -> Tensor:
        return first_output(self.network(image), image.ndim)

    def _captured(self, stream: SideStream, image: Tensor, expected: Tensor) -> _Graph | None:
        why, captured = "", None
        try:
            static = image.clone()
            graph, scores = stream.capture(lambda: self._scores(static))
            captured = _Graph(graph, static, scores)
            why = self._why_not(captured, image, expected)
        except Exception as error:  # lack of memory, a network that asks for values
            why = first_line(error)
        # Only after the except block: the traceback keeps the tensors of the failed capture alive.
        if not why:
            return captured
        if captured is not None:
            captured.graph.reset()
        del captured
        log.info("windows of %s go through the network without a CUDA graph: %s", tuple(image.shape), why)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _why_not(self, graph: _Graph, image: Tensor, expected: Tensor) -> str:
        """Why the graph is not used; empty if it is. Reads device values."""
        if not torch.allclose(graph(image).float(), expected.float(), rtol=1e-2, atol=1e-3):
            return "the graph gives other scores"
        calls = {"network": lambda: self._scores(image), "graph": lambda: graph(image)}
        comparison = compared(calls, self.device, base="network", seconds=_SECONDS, least=_LEAST)
        return "" if certainly_faster(comparison, "graph", self.device, least=_LEAST) else "it is not faster"
