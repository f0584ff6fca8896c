"""Detection of out-of-memory errors, and of settings that must lead to one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from hasten.config.fingerprint import Fingerprint
from hasten.config.settled import PlannedRun
from hasten.config.size import size_text

_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "not enough memory",
    "defaultcpuallocator",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)
"""Messages of libraries that raise a generic error for a lack of memory."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error reports that device or host memory was short."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES)


@contextmanager
def out_of_memory_ends_block(on: bool = True) -> Iterator[None]:
    """A lack of memory ends the block without an error, unless not `on`. Nothing keeps its tensors alive afterwards."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not on or not out_of_memory(error):
            raise


def memory_mistakes(
    config: PlannedRun, fingerprint: Fingerprint, *, num_outputs: int, device: torch.device, num_ranks: int = 1
) -> list[str]:
    """Sizes that no step could hold in all the memory of `device`, with what would fit.

    And spacings at which a case does not fit into host memory while it is prepared.

    Lower bounds only: float32 images and uint8 labels of a batch, scores of a window, weights and gradients of the
    convolutions between levels. What passes may still be too much.
    """
    patch, window, batch_size = config.sample.patch, config.infer.patch, config.sample.batch_size
    channels = config.network.channels
    num_channels, total = len(fingerprint.channels), _total_memory(device)
    has = f"{device} has {size_text(total)}"
    voxels = f"use {total // (4 * num_channels + 1)} voxels at most, and fewer with what a step needs besides"
    sample = math.prod(patch) * (4 * num_channels + 1)
    batch = -(-batch_size // num_ranks)
    mistakes = []
    if sample > total:
        mistakes.append(f"sample.patch: one patch of {list(patch)} takes {size_text(sample)}, but {has}; {voxels}")
    elif batch * sample > total:
        mistakes.append(
            f"sample.batch_size: {batch} patches of {list(patch)} take {size_text(batch * sample)}, but {has}: "
            f"{total // sample} of them at most, and fewer with what a step needs besides"
        )
    scores = 4 * math.prod(window) * (num_channels + num_outputs)
    if window != patch and scores > total:
        mistakes.append(f"infer.patch: one window of {list(window)} takes {size_text(scores)}, but {has}; {voxels}")
    host, case = _total_memory(torch.device("cpu")), int(4 * num_channels * _largest_case(config, fingerprint))
    if case > host:
        mistakes.append(
            f"prepare.spacing: with voxels of {list(config.prepare.spacing or ())} mm the largest case takes "
            f"{size_text(case)}, but the host has {size_text(host)}; use coarser voxels"
        )
    weights = sum(2 * 4 * 9 * fine * coarse for fine, coarse in itertools.pairwise(channels)) // num_ranks
    if weights > total:
        mistakes.append(
            f"network.channels: {list(channels)} have {size_text(weights)} of weights and gradients or more, but "
            f"{has}; use fewer"
        )
    return mistakes


def _largest_case(config: PlannedRun, fingerprint: Fingerprint) -> float:
    """Voxels of the largest prepared case, or a part of them where its surroundings may be cropped before."""
    spacing = config.prepare.spacing or (0.0, 0.0, 0.0)
    voxels = max(
        math.prod(size * at / (target or at) for size, at, target in zip(shape, spacings, spacing, strict=True))
        for shape, spacings in zip(fingerprint.shapes, fingerprint.spacings, strict=True)
    )
    return voxels * (0.1 if config.prepare.crop_foreground else 1.0)


def _total_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total + psutil.swap_memory().total
