"""Measures the memory of a step, and the time that each memory budget costs."""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hasten.nets.build import Loss
from hasten.nets.random_state import random_state_kept
from hasten.nets.recompute.apply import RecomputeReport, recompute, recompute_modules, undo
from hasten.nets.recompute.profile import profile_network


class MemoryPoint(NamedTuple):
    """One budget of `memory_curve`."""

    budget: int
    """Bytes."""
    predicted: int
    """Predicted peak bytes of activations of a step."""
    kept: int
    """Bytes measured between the forward and the backward pass: activations, output and loss."""
    peak: int
    """Measured peak bytes: these, the gradients, and intermediate results."""
    milliseconds: float
    """Median of a forward and backward pass."""
    report: RecomputeReport


def memory_curve(
    network: nn.Module,
    probe_batch: tuple[Tensor, Tensor],
    loss: Loss,
    budgets: Sequence[int],
    *,
    rounds: int = 3,
) -> list[MemoryPoint]:
    """Predicted and measured bytes, and the time of a forward and backward pass, for each budget (bytes).

    probe_batch: image (B, C, ...) and label (B, 1, ...) on the network's device, for loss(output, label). A copy of the
    network is measured, under the caller's autocast, budgets in turn; torch's random state is restored.
    Counts the bytes that a step adds to those allocated before: tensors on a CPU, the allocator's bytes on a GPU.
    """
    image, label = probe_batch
    network_copy = copy.deepcopy(network).train()
    undo(network_copy)
    profile = profile_network(network_copy, image)
    reports = [recompute(network_copy, image, budget, profile=profile) for budget in budgets]
    draws = {block.name for block in profile.blocks if block.draws}

    def forward() -> Tensor:
        return loss(network_copy(image), label)

    with random_state_kept(image.device):
        measured: list[tuple[int, int]] = []
        times: list[list[float]] = [[] for _ in reports]
        for number in range(rounds + 1):
            for place, report in enumerate(reports):
                undo(network_copy)
                recompute_modules(network_copy, report.modules, draws=draws)
                if number:
                    times[place].append(1e3 * seconds_of(lambda: forward().backward(), image.device))
                else:
                    measured.append(step_bytes(forward, image.device))
                network_copy.zero_grad(set_to_none=True)
    return [
        MemoryPoint(report.budget, report.predicted, *sizes, median(spent) if spent else 0.0, report)
        for report, sizes, spent in zip(reports, measured, times, strict=True)
    ]


def step_bytes(forward: Callable[[], Tensor], device: torch.device) -> tuple[int, int]:
    """Bytes allocated after `forward()`, which returns the loss (), and the peak until the end of the backward pass."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        value = forward()
        after_forward = torch.cuda.memory_allocated(device) - before
        value.backward()
        return after_forward, torch.cuda.max_memory_allocated(device) - before
    with HostBytes() as counted:
        value = forward()
        after_forward = counted.live
        value.backward()
    return after_forward, counted.peak


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Wall time of a call with the work that it queues on a GPU, from the end of earlier work on."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


class HostBytes(TorchDispatchMode):
    """Counts the bytes of the live tensors that were created within it, and their peak.

    Temporary memory inside a single operation is not counted. limit: bytes at which MemoryError is raised, long
    before the kernel would end the process.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.limit = limit
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._note(tensor, created=False)
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self._note(tensor, created=True)
        if self.limit is not None and self.live > self.limit:
            raise MemoryError(f"a step holds more than {self.limit / 2**20:.0f} MiB")
        return output

    def _note(self, tensor: Tensor, *, created: bool) -> None:
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._sizes:
            return
        # An input that no operation in here created existed before.
        size = storage.nbytes() if created else 0
        self._sizes[storage._cdata] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._freed, storage._cdata).atexit = False

    def _freed(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
