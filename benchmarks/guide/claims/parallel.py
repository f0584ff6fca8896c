"""Several processes or devices for one network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.guide.claim import SLIDES, TUNING, Budget, Guidance, Outcome, apart, judged
from benchmarks.guide.ranks import images, network, ranks, sample_of, step

Arms = dict[str, Callable[[], list[float]]]


def _apart(one: list[float], other: list[float]) -> float:
    return apart(torch.tensor(one), torch.tensor(other))


def _ddp_over_dp(budget: Budget) -> Outcome:
    whole = network(quick=budget.quick).to(budget.device)
    spread = nn.DataParallel(whole)
    image = images(quick=budget.quick).to(budget.device)
    steps = budget.size(20, 1)

    def data_parallel() -> list[float]:
        for _ in range(steps):
            step(spread, image)
        return sample_of(whole)

    with ranks(device=budget.device, quick=budget.quick) as order:
        arms: Arms = {
            "DataParallel": data_parallel,
            "DistributedDataParallel": partial(order, steps, 1, True),
        }
        difference = _apart(*(arm() for arm in arms.values()))
        return judged(budget.compare(arms, base="DataParallel"), difference=difference, tolerance=1e-2)


def _ddp_on_cpu(budget: Budget) -> Outcome:
    whole = network(quick=budget.quick)
    image = images(quick=budget.quick)
    steps = budget.size(2, 1)

    def alone() -> list[float]:
        for _ in range(steps):
            step(whole, image)
        return sample_of(whole)

    with ranks(device="cpu", quick=budget.quick) as order:
        arms: Arms = {
            "one process": alone,
            "two processes": partial(order, steps, 1, True),
        }
        difference = _apart(*(arm() for arm in arms.values()))
        return judged(
            budget.compare(arms, base="one process"),
            difference=difference,
            tolerance=1e-3,
            note="gloo on loopback, the same batch in all",
        )


def _no_sync(budget: Budget) -> Outcome:
    steps = budget.size(2, 1)
    with ranks(device="cpu", quick=budget.quick) as order:
        arms = {
            "reduced every time": partial(order, steps, 2, True),
            "reduced at the end": partial(order, steps, 2, False),
        }
        difference = _apart(*(arm() for arm in arms.values()))
        return judged(
            budget.compare(arms, base="reduced every time"),
            difference=difference,
            tolerance=1e-3,
            note="gloo on loopback, two pieces a step",
        )


CLAIMS = (
    Guidance(
        name="ddp-over-dp",
        claim="DistributedDataParallel is faster than DataParallel",
        source=f"{TUNING}: Use efficient data-parallel backend; {SLIDES}",
        published="much better performance and scaling",
        needs="two CUDA devices",
        run=_ddp_over_dp,
        setup_s=10.0,
    ),
    Guidance(
        name="ddp-on-cpu",
        claim="Two DistributedDataParallel processes train faster on a CPU than one process with all threads",
        source=f"{TUNING}: Train a model on CPU with DistributedDataParallel (meant for several sockets)",
        needs="two processor cores",
        run=_ddp_on_cpu,
        setup_s=6.0,
    ),
    Guidance(
        name="no-sync",
        claim="Gradients that accumulate are reduced faster once at the end than every time",
        source=f"{TUNING}: Skip unnecessary all-reduce",
        needs="two processor cores",
        run=_no_sync,
        setup_s=6.0,
    ),
)
