"""The largest batch that fits in a GPU's memory, by trying. On a CPU, larger batches gain nothing."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hasten.config.size import size_text
from hasten.nets.build import Loss
from hasten.nets.random_state import random_state_kept
from hasten.optim.schedule import scaled_rate
from hasten.runtime.out_of_memory import out_of_memory_ends_block

_HIGHEST = 2**16
_STATE_COPIES = 3
"""Copies of the weights beside a step's own memory: two moments of AdamW and the running average."""
_CAPTURE_COPIES = 2 * (1 + _STATE_COPIES)
"""Copies of the weights while a graph is compared with a step: the state before it, and after it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """The result of a search."""

    batch_size: int
    tried: tuple[tuple[int, bool], ...]
    """Batches that were run, in this order, and whether they fitted."""
    why: str
    """A sentence for the report."""
    learning_rate: float | None = None
    """Learning rate for this batch, by the linear scaling rule, where one was given."""


def find_batch_size(
    try_batch: Callable[[int], object],
    *,
    lowest: int = 1,
    highest: int | None = None,
    multiple_of: int = 1,
    safety: float = 0.0,
) -> BatchSize:
    """The largest batch for which `try_batch(n)` does not run out of memory: by doubling, then by bisection.

    try_batch runs a whole training step and raises what torch raises where memory is short; whatever else it raises
    passes through. Between tries memory is freed and the allocator's cache is emptied. highest: the largest batch that
    is wanted (65536 if None). safety: share of the batch that is given back. Only multiples of `multiple_of` are tried.
    For a GPU: on a CPU the kernel ends a process that asks for too much.
    Raises ValueError where not even the lowest fits.
    """
    unit = _unit(lowest, highest, multiple_of)
    first, most = -(-lowest // unit), (highest or _HIGHEST) // unit
    tried: list[tuple[int, bool]] = []

    def fits(count: int) -> bool:
        tried.append((count * unit, _fits(try_batch, count * unit)))
        return tried[-1][1]

    if not fits(first):
        raise ValueError(
            f"a batch of {first * unit} does not fit in memory; use a smaller patch or network, bf16, or recomputation"
        )
    good, bad = first, most + 1
    while good < most and bad > most:
        following = min(2 * good, most)
        good, bad = (following, bad) if fits(following) else (good, following)
    while bad - good > 1 and bad <= most:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    limit = f"{bad * unit} does not fit" if bad <= most else f"no more than {most * unit} was asked for"
    batch_size = max(first, int(good * (1 - safety) + 1e-9)) * unit
    reserve_text = f"; {safety:.0%} is left as a reserve" if batch_size < good * unit else ""
    return BatchSize(
        batch_size=batch_size, tried=tuple(tried), why=f"a batch of {good * unit} fits, {limit}{reserve_text}"
    )


def release_memory() -> None:
    """Free unused memory: cycles of Python objects, and the cache of the CUDA allocator."""
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def find_batch_size_for(
    network: nn.Module,
    loss: Loss,
    shape: tuple[int, ...],
    *,
    num_classes: int,
    device: torch.device,
    budget: int | None = None,
    learning_rate: float | None = None,
    reference_batch: int = 1,
    lowest: int = 1,
    highest: int | None = None,
    multiple_of: int = 1,
    safety: float = 0.1,
    reserve: int | None = None,
    layout: torch.memory_format = torch.contiguous_format,
    captured: bool = False,
) -> BatchSize:
    """The largest batch that a network can be trained with on a GPU.

    shape: one sample, (C, D, H, W) or (C, H, W). Forward, `loss(output, label)` and backward are run on random voxels,
    with a copy of the network, under the caller's autocast. budget: bytes for the steps; None takes what is free.
    learning_rate: one that was good at `reference_batch`; the linear scaling rule makes it that of the batch found.
    safety: share of the budget that is left free. reserve: bytes of the optimizer's state and the average of the
    weights; None takes three times those of the trained weights. layout: memory format of the images. captured: the
    step may become a CUDA graph, and there has to be room for comparing the two.
    """
    network_copy = copy.deepcopy(network).train()
    if reserve is None:
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
        ballast = _reserve_memory(device, budget, safety, reserve)
        result = find_batch_size(step, lowest=lowest, highest=highest, multiple_of=multiple_of)
        result = replace(result, why=f"{result.why}; {size_text(ballast.numel())} were held back")
        del ballast
        release_memory()
    if learning_rate is None:
        return result
    rate = scaled_rate(learning_rate, result.batch_size, reference_batch)
    why = f"{result.why}; learning rate {learning_rate:g} at a batch of {reference_batch} is {rate:g} at this one"
    return replace(result, learning_rate=rate, why=why)


def _unit(lowest: int, highest: int | None, multiple_of: int) -> int:
    if lowest < 1 or multiple_of < 1:
        raise ValueError(f"lowest={lowest}, multiple_of={multiple_of}: give 1 or more")
    first = -(-lowest // multiple_of) * multiple_of
    if highest is not None and highest < first:
        raise ValueError(f"highest={highest}: below {first}, the lowest batch that is a multiple of {multiple_of}")
    return multiple_of


def _fits(try_batch: Callable[[int], object], count: int) -> bool:
    fits = False
    with out_of_memory_ends_block():
        try_batch(count)
        fits = True
    release_memory()
    return fits


def _reserve_memory(device: torch.device, budget: int | None, safety: float, reserve: int) -> Tensor:
    """A tensor that occupies GPU memory during the search: optimizer state, safety margin, memory beyond the budget."""
    release_memory()
    free = torch.cuda.mem_get_info(device)[0]
    usable = free if budget is None else min(free, budget)
    size = free - int(usable * (1 - safety)) + reserve
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        raise ValueError(
            f"{device} has {size_text(free)} free, less than {size_text(reserve)} for the optimizer and the share "
            "to spare"
        ) from error
