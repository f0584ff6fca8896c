"""The training step: gradients, optimizers, recomputation, validation, debugging, batch size, threads."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.guide.claim import SLIDES, TUNING, Budget, Guidance, Outcome, apart, judged, with_interval
from benchmarks.guide.nets import (
    blocks,
    forward_backward,
    gradients,
    loss_of,
    peak_bytes,
    repeated,
    unet,
    values,
)
from hasten.config.size import size_text
from hasten.observe.cores import usable_cores

_LESS_MEMORY = 0.95
"""A claim of less memory holds below this share of what it takes without."""


def _grad_none(budget: Budget) -> Outcome:
    torch.manual_seed(0)
    width = budget.size(1024, 16, cuda=4096)
    network = nn.Sequential(*(nn.Linear(width, width) for _ in range(3))).to(budget.device)
    image = values(4, width, device=budget.device)

    def step(*, to_none: bool) -> None:
        network.zero_grad(set_to_none=to_none)
        loss_of(network, image).backward()

    def result(*, to_none: bool) -> list[Any]:
        step(to_none=to_none)
        step(to_none=to_none)
        return [weight.grad.clone() for weight in network.parameters() if weight.grad is not None]

    arms = {
        "set to zero": repeated(partial(step, to_none=False), budget.size(5, 1)),
        "set to None": repeated(partial(step, to_none=True), budget.size(5, 1)),
    }
    difference = apart(result(to_none=False), result(to_none=True))
    return judged(budget.compare(arms, base="set to zero"), difference=difference, tolerance=1e-6)


def _fused_optimizer(budget: Budget) -> Outcome:
    network = unet((16, 32, 64, 128, 256) if not budget.quick else (4, 8)).to(budget.device)
    for place, weight in enumerate(network.parameters()):
        weight.grad = values(*weight.shape, device=budget.device, seed=place)
    ways = {
        "loop": {"foreach": False, "fused": False},
        "foreach": {"foreach": True, "fused": False},
        "fused": {"foreach": False, "fused": True},
    }
    nets = {name: copy.deepcopy(network) for name in ways}
    for twin in nets.values():
        for weight, own in zip(network.parameters(), twin.parameters(), strict=True):
            assert weight.grad is not None
            own.grad = weight.grad.clone()
    kind: Callable[..., torch.optim.Optimizer] = partial(torch.optim.AdamW, lr=1e-3, weight_decay=1e-2)
    optimizers = {name: kind(nets[name].parameters(), **way) for name, way in ways.items()}
    for optimizer in optimizers.values():
        for _ in range(3):
            optimizer.step()
    difference = max(apart(list(nets["loop"].parameters()), list(twin.parameters())) for twin in nets.values())
    times = budget.size(6, 1, cuda=20)
    arms = {name: repeated(optimizer.step, times) for name, optimizer in optimizers.items()}
    return judged(budget.compare(arms, base="loop"), advised=("fused",), difference=difference)


def _checkpointing(budget: Budget) -> Outcome:
    width, count = budget.size(16, 4), budget.size(6, 3)
    layers = nn.ModuleList(blocks(width, 2, dims=3, seed=seed) for seed in range(count)).to(budget.device)
    image = values(2, width, *[budget.size(24, 8, cuda=64)] * 3, device=budget.device, seed=0)

    class Stack(nn.Module):
        def __init__(self, *, recompute: bool) -> None:
            super().__init__()
            self.layers, self.recompute = layers, recompute

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False) if self.recompute else layer(x)
            return x

    stacks = {"kept": Stack(recompute=False), "recomputed": Stack(recompute=True)}
    difference = apart(*(gradients(stack, image) for stack in stacks.values()))
    memory = {}
    for name, stack in stacks.items():
        stack.zero_grad(set_to_none=True)
        memory[name] = peak_bytes(partial(forward_backward, stack, image), budget.device)
    arms = {name: partial(forward_backward, stack, image) for name, stack in stacks.items()}
    comparison = budget.compare(arms, base="kept")
    share = memory["recomputed"] / memory["kept"]
    agrees = difference <= budget.within(1e-4)
    return Outcome(
        verdict="holds" if share < _LESS_MEMORY and agrees else "does not hold",
        measured=f"{share:.2f} of the memory, recomputed",
        why="" if agrees else f"the gradients differ by {difference:.1e} of the largest value",
        note=f"speed {with_interval(comparison.arms['recomputed'])}; "
        f"{size_text(memory['kept'])} to {size_text(memory['recomputed'])}",
        comparison=comparison,
        difference=difference,
        memory=memory,
    )


def _no_grad(budget: Budget) -> Outcome:
    network = unet((16, 32, 64) if not budget.quick else (4, 8)).to(budget.device).eval()
    image = values(2, 1, *[budget.size(32, 8, cuda=96)] * 3, device=budget.device)

    def validate(*, grad: bool) -> Tensor:
        with torch.set_grad_enabled(grad):
            return network(image)

    ways = {"with gradients": partial(validate, grad=True), "no_grad": partial(validate, grad=False)}
    difference = apart(*(way() for way in ways.values()))
    memory = {name: peak_bytes(way, budget.device) for name, way in ways.items()}
    arms = {name: repeated(way, budget.size(4, 1)) for name, way in ways.items()}
    verdict = judged(
        budget.compare(arms, base="with gradients"),
        difference=difference,
        tolerance=budget.within(1e-4),
        note=f"memory {size_text(memory['with gradients'])} to {size_text(memory['no_grad'])}",
    )
    return replace(verdict, memory=memory)


def _debugging(budget: Budget) -> Outcome:
    network = unet((8, 16, 32) if not budget.quick else (4, 8)).to(budget.device)
    image = values(1, 1, *[budget.size(16, 8)] * 3, device=budget.device)

    def anomaly() -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            forward_backward(network, image)

    def profiled() -> None:
        with torch.autograd.profiler.profile(use_device="cuda" if budget.device == "cuda" else None):
            forward_backward(network, image)

    times = budget.size(4, 1)
    arms = {
        "off": repeated(partial(forward_backward, network, image), times),
        "anomaly detection": repeated(anomaly, times),
        "profiler": repeated(profiled, times),
    }
    return judged(budget.compare(arms, base="off"), wanted="slower")


def _batch_size(budget: Budget) -> Outcome:
    network = unet((16, 32, 64) if not budget.quick else (4, 8)).to(budget.device)
    side, times = budget.size(24, 8, cuda=64), budget.size(8, 1)

    def seconds_per_sample(count: int) -> Callable[[], float]:
        image = values(count, 1, side, side, side, device=budget.device)

        def run() -> float:
            begin = time.perf_counter()
            for _ in range(max(1, times // count)):
                forward_backward(network, image)
            budget.sync()
            return (time.perf_counter() - begin) / count / max(1, times // count)

        return run

    arms = {f"batch {count}": seconds_per_sample(count) for count in (1, 2, 4, 8)}
    return judged(budget.compare(arms, base="batch 1"), note="samples a second")


def _threads(budget: Budget) -> Outcome:
    cores = usable_cores()
    network = blocks(budget.size(32, 4), 3, dims=3)
    image = values(2, budget.size(32, 4), *[budget.size(24, 8)] * 3)

    def step(threads: int) -> None:
        torch.set_num_threads(threads)
        forward_backward(network, image)

    results = []
    for threads in (1, cores):
        torch.set_num_threads(threads)
        results.append(gradients(network, image))
    arms = {"1 thread": partial(step, 1), f"{cores} threads": partial(step, cores)}
    return judged(budget.compare(arms, base="1 thread"), difference=apart(*results), tolerance=1e-3)


CLAIMS = (
    Guidance(
        name="grad-none",
        claim="Gradients set to None instead of zero make the backward pass faster",
        source=f"{TUNING}: Use parameter.grad = None",
        run=_grad_none,
    ),
    Guidance(
        name="fused-adamw",
        claim="A fused AdamW step is faster than the loop over the parameters",
        source=f"{SLIDES}: fused optimizers; PyTorch documentation: torch.optim, foreach and fused",
        run=_fused_optimizer,
    ),
    Guidance(
        name="checkpointing",
        claim="Activations recomputed in the backward pass take less memory",
        source=f"{TUNING}: Checkpoint intermediate buffers",
        run=_checkpointing,
    ),
    Guidance(
        name="no-grad",
        claim="no_grad makes a validation faster",
        source=f"{TUNING}: Disable gradient calculation for validation or inference",
        run=_no_grad,
    ),
    Guidance(
        name="debugging",
        claim="Anomaly detection and the profiler slow the training down",
        source=f"{TUNING}: Disable debugging APIs",
        run=_debugging,
    ),
    Guidance(
        name="batch-size",
        claim="A larger batch trains more samples a second",
        source=f"{SLIDES}: Increase batch size",
        run=_batch_size,
    ),
    Guidance(
        name="threads",
        claim="OMP_NUM_THREADS at the number of cores is faster than one thread",
        source=f"{TUNING}: Utilize OpenMP",
        needs="two processor cores",
        run=_threads,
    ),
)
