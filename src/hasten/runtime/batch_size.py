"""The largest batch that fits in a GPU's memory, by trying. On a CPU, larger batches gain nothing."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hasten.config.size import size_text
from hasten.devices import empty_cache, free_bytes
from hasten.nets.build import Loss
from hasten.nets.random_state import random_state_kept
from hasten.runtime.out_of_memory import out_of_memory_ends_block

_HIGHEST = 2**16
_SPARE = 0.1
"""Share of the free memory that is left free."""
_STATE_COPIES = 3
"""Copies of the weights beside a step's own memory: two moments of AdamW and the running average."""
_CAPTURE_COPIES = 2 * (1 + _STATE_COPIES)
"""Copies of the weights while a graph is compared with a step: the state before it, and after it."""


def find_batch_size(try_batch: Callable[[int], object], *, highest: int = _HIGHEST) -> int:
    """The largest batch for which `try_batch(n)` does not run out of memory: by doubling, then by bisection.

    try_batch runs a whole training step and raises what torch raises where memory is short; whatever else it raises
    passes through. Between tries memory is freed and the allocator's cache is emptied. highest: the largest batch that
    is wanted. For a GPU: on a CPU the kernel ends a process that asks for too much. Raises ValueError where not even a
    batch of 1 fits.
    """
    if not _fits(try_batch, 1):
        raise ValueError("a batch of 1 does not fit in memory; use a smaller patch or network, bf16, or recomputation")
    good, bad = 1, highest + 1
    while bad - good > 1:
        count = min(2 * good, highest) if bad > highest else (good + bad) // 2
        good, bad = (count, bad) if _fits(try_batch, count) else (good, count)
    return good


def release_memory() -> None:
    """Free unused memory: cycles of Python objects, and the cache of an accelerator's allocator."""
    gc.collect()
    empty_cache()


def find_batch_size_for(
    network: nn.Module,
    loss: Loss,
    shape: tuple[int, ...],
    *,
    num_classes: int,
    device: torch.device,
    highest: int = _HIGHEST,
    layout: torch.memory_format = torch.contiguous_format,
    captured: bool = False,
) -> int:
    """The largest batch that a network can be trained with on a GPU.

    shape: one sample, (C, D, H, W) or (C, H, W). Forward, `loss(output, label)` and backward are run on random voxels,
    with a copy of the network, under the caller's autocast. A tenth of the free memory stays free, and what the
    optimizer and the average of the weights will take. layout: memory format of the images. captured: the step may
    become a CUDA graph, and there has to be room for comparing the two.
    """
    network_copy = copy.deepcopy(network).train()
    copies = _STATE_COPIES + (_CAPTURE_COPIES if captured else 0)
    reserve = copies * sum(value.nbytes for value in network_copy.parameters() if value.requires_grad)
    generator = torch.Generator().manual_seed(0)

    def step(count: int) -> None:
        image = torch.randn(count, *shape, generator=generator).to(device, memory_format=layout)
        label = torch.randint(0, num_classes, (count, 1, *shape[1:]), generator=generator).to(device)
        try:
            value: Tensor = loss(network_copy(image), label)
            value.backward()
        finally:
            network_copy.zero_grad(set_to_none=True)

    with random_state_kept(device):
        ballast = _reserve_memory(device, reserve)
        result = find_batch_size(step, highest=highest)
        del ballast
        release_memory()
    return result


def _fits(try_batch: Callable[[int], object], count: int) -> bool:
    fits = False
    with out_of_memory_ends_block():
        try_batch(count)
        fits = True
    release_memory()
    return fits


def _reserve_memory(device: torch.device, reserve: int) -> Tensor:
    """A tensor that occupies GPU memory during the search: optimizer state and safety margin."""
    release_memory()
    free = free_bytes(device)
    try:
        return torch.empty(int(free * _SPARE) + reserve, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        needed = f"less than {size_text(reserve)} for the optimizer and the share to spare"
        raise ValueError(f"{device} has {size_text(free)} free, {needed}") from error
