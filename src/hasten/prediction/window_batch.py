"""How many windows go through a network at once: measured on the GPU that predicts, on time and memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from hasten.config.size import size_text
from hasten.prediction.bands import available_bytes
from hasten.prediction.infer import Inference, network_scores
from hasten.runtime.device import seconds_of
from hasten.runtime.out_of_memory import out_of_memory_ends_block

log = logging.getLogger(__name__)

_HIGHEST = 64
_LEAST = 0.05
"""Smallest share of a window's time that a doubled batch has to save."""
_SHARE = 0.25
"""Share of free memory that a batch may take: sums and the images need the rest."""
_PASSES = 3


@dataclass(frozen=True, slots=True)
class BatchTrial:
    """One batch of windows through the network."""

    seconds: float
    num_bytes: int
    """Peak memory above what was allocated before."""


def best_batch(trial: Callable[[int], BatchTrial], free: int) -> tuple[int, str]:
    """The batch from which on doubling it gains nothing or takes too much memory, and a sentence that says which.

    trial: runs this many windows. free: bytes that are free. One window is always allowed.
    """
    count, last = 1, trial(1)
    while count < _HIGHEST:
        following = 2 * count
        num_bytes = last.num_bytes // count * following
        if num_bytes > _SHARE * free:
            return count, f"{following} would take {size_text(num_bytes)} of the {size_text(free)} that are free"
        doubled = None
        with out_of_memory_ends_block():
            doubled = trial(following)
        if doubled is None:
            return count, f"{following} run out of memory"
        if doubled.seconds / following > (1 - _LEAST) * last.seconds / count:
            each = [1e3 * trial.seconds / size for trial, size in ((last, count), (doubled, following))]
            return count, f"{each[0]:.2f} ms a window, and {each[1]:.2f} ms with {following}"
        count, last = following, doubled
    return count, "no more are tried"


def measured_batch(network: nn.Module, channels: int, inference: Inference) -> int:
    """The best batch of windows of `how` on its device, a GPU. On a CPU, a batch gains nothing from more voxels than
    `Windows` allows it.
    """
    if inference.device.type != "cuda":
        return inference.batch_size
    count, why = best_batch(
        lambda count: _trial(network, channels, inference, count), available_bytes(inference.device)
    )
    log.info("%d windows of %s go through the network at once: %s", count, inference.patch, why)
    torch.cuda.empty_cache()
    return count


@torch.inference_mode()
def _trial(network: nn.Module, channels: int, inference: Inference, count: int) -> BatchTrial:
    generator = torch.Generator(inference.device).manual_seed(0)
    batch = torch.randn(count, channels, *inference.patch, device=inference.device, generator=generator)
    before = torch.cuda.memory_allocated(inference.device)
    torch.cuda.reset_peak_memory_stats(inference.device)
    network_scores(network, batch, inference)  # libraries choose their algorithms for this shape
    num_bytes = torch.cuda.max_memory_allocated(inference.device) - before
    seconds = [seconds_of(lambda: network_scores(network, batch, inference), inference.device) for _ in range(_PASSES)]
    return BatchTrial(min(seconds), num_bytes)
