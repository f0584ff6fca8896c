"""The largest batch that fits in memory: tried on a GPU, predicted on a CPU, where too much would end the process."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hasten.cache.memory import available_memory
from hasten.config.size import size_text
from hasten.engine.out_of_memory import out_of_memory_ends_block
from hasten.nets.build import Loss
from hasten.nets.random_state import random_state_kept
from hasten.nets.recompute.measure import HostBytes
from hasten.optim.schedule import scaled_rate

_HIGHEST = 2**16
HOST_SAFETY = 0.3
"""Share of the host's memory that is left free: libraries and the allocator took up to 34 % more than the tensors."""
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
    For a GPU: on a CPU the kernel ends a process that asks for too much, so that `host_batch_size` is to be used there.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class HostBudget:
    """Bytes of a step on a CPU, as a line through what two small batches were measured to hold."""

    fixed: int
    """Bytes that do not depend on the batch size."""
    per_sample: int
    budget: int
    """Bytes that a step may hold."""

    def bytes_of(self, batch_size: int) -> int:
        return self.fixed + self.per_sample * batch_size

    @property
    def largest(self) -> int:
        """The largest batch within the budget; 0 if not one sample is."""
        return max(0, (self.budget - self.fixed) // self.per_sample)


def host_batch_size(
    try_batch: Callable[[int], object],
    *,
    budget: int | None = None,
    lowest: int = 1,
    highest: int | None = None,
    multiple_of: int = 1,
    safety: float = HOST_SAFETY,
    reserve: int = 0,
    bytes_of: Callable[[Callable[[], object], int], int] | None = None,
) -> BatchSize:
    """The largest batch whose step is predicted to hold at most `budget` bytes of host memory.

    Runs the lowest batch and twice as much; each run is aborted where it would exceed the budget.
    budget: None takes what is available to this process, within the limits of its control groups. safety: share of the
    budget for what is not counted (buffers inside operations, gaps between blocks). reserve: bytes that a step holds
    beside what try_batch does, such as an optimizer's state. bytes_of: measures a call, within a limit; None counts
    tensors. Raises ValueError where not even the lowest fits.
    """
    unit = _unit(lowest, highest, multiple_of)
    first, most = -(-lowest // unit) * unit, (highest or _HIGHEST) // unit * unit
    whole = available_memory() if budget is None else budget
    room = int(whole * (1 - safety)) - reserve
    measure = bytes_of or _counted
    tried: list[tuple[int, bool]] = []

    def measured(count: int) -> int | None:
        sizes: list[int] = []
        fits = _fits(lambda n: sizes.append(measure(lambda: try_batch(n), room)), count)
        tried.append((count, fits and sizes[0] <= room))
        return sizes[0] if tried[-1][1] else None

    one = measured(first)
    if one is None:
        raise ValueError(
            f"a batch of {first} needs more than the {size_text(max(0, room))} that a step may hold on this machine; "
            "use a smaller patch or network, or recomputation"
        )
    second = min(2 * first, most)
    two = measured(second) if second > first else None
    line = _line(first, one, second, two, room)
    batch_size = min(most, max(first, line.largest // unit * unit))
    why = (
        f"{size_text(line.per_sample)} a sample and {size_text(line.fixed)} beside them, measured at a batch of "
        f"{' and '.join(str(count) for count, fits in tried if fits)}: {batch_size} hold "
        f"{size_text(line.bytes_of(batch_size))} of the {size_text(room)} that a step may hold"
    )
    return BatchSize(batch_size=batch_size, tried=tuple(tried), why=why)


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
    safety: float | None = None,
    reserve: int | None = None,
    layout: torch.memory_format = torch.contiguous_format,
    captured: bool = False,
) -> BatchSize:
    """The largest batch that a network can be trained with on a device: tried on a GPU, predicted on a CPU.

    shape: one sample, (C, D, H, W) or (C, H, W). Forward, `loss(output, label)` and backward are run on random voxels,
    with a copy of the network, under the caller's autocast. budget: bytes for the steps; None takes what is free.
    learning_rate: one that was good at `reference_batch`; the linear scaling rule makes it that of the batch found.
    safety: share of the budget that is left free; None: a tenth on a GPU, HOST_SAFETY else. reserve: bytes of the
    optimizer's state and the average of the weights; None takes three times those of the trained weights. layout:
    memory format of the images. captured: the step may become a CUDA graph, and there has to be room for comparing the
    two.
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

    limits = {"lowest": lowest, "highest": highest, "multiple_of": multiple_of}
    with random_state_kept(device):
        if device.type == "cuda":
            ballast = _reserve_memory(device, budget, 0.1 if safety is None else safety, reserve)
            result = find_batch_size(step, **limits)  # type: ignore[arg-type]
            result = replace(result, why=f"{result.why}; {size_text(ballast.numel())} were held back")
            del ballast
            release_memory()
        else:
            safety = HOST_SAFETY if safety is None else safety
            result = host_batch_size(step, budget=budget, safety=safety, reserve=reserve, **limits)  # type: ignore[arg-type]
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


def _counted(call: Callable[[], object], limit: int) -> int:
    with HostBytes(limit) as counted:
        call()
    return counted.peak


def _line(first: int, one: int, second: int, two: int | None, budget: int) -> HostBudget:
    """The line through the bytes of two batches; with one, or without growth between them, through nothing at 0."""
    if two is None or two <= one:
        count, size = (first, one) if two is None else (second, two)
        return HostBudget(fixed=0, per_sample=max(1, -(-size // count)), budget=budget)
    per_sample = -(-(two - one) // (second - first))
    return HostBudget(fixed=max(0, two - second * per_sample), per_sample=per_sample, budget=budget)


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
