"""Work on a GPU: waiting for it, making tensors on it, caching on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.guide.claim import MONAI, TUNING, Budget, Guidance, Outcome, apart, judged
from benchmarks.guide.nets import blocks, forward_backward, repeated, unet, values


def _item_sync(budget: Budget) -> Outcome:
    network = unet((8, 16, 32)).to(budget.device)
    image = values(1, 1, *[budget.size(32, 8)] * 3, device=budget.device)
    steps = budget.size(20, 2)

    def epoch(*, every_step: bool) -> Tensor:
        total = torch.zeros((), device=budget.device)
        with torch.no_grad():
            for _ in range(steps):
                value = network(image).square().mean()
                total += value.item() if every_step else value
        return total.cpu()

    arms = {"item() every step": partial(epoch, every_step=True), "item() at the end": partial(epoch, every_step=False)}
    network.eval()
    difference = apart(*(arm() for arm in arms.values()))
    return judged(budget.compare(arms, base="item() every step"), difference=difference)


def _create_on_device(budget: Budget) -> Outcome:
    shape = (budget.size(16, 2), budget.size(1_000_000, 100))
    arms: dict[str, Callable[[], Tensor]] = {
        "made on the host": lambda: torch.zeros(shape).to(budget.device),
        "made on the device": lambda: torch.zeros(shape, device=budget.device),
    }
    difference = apart(*(arm() for arm in arms.values()))
    timed = {name: repeated(arm, budget.size(5, 1)) for name, arm in arms.items()}
    return judged(budget.compare(timed, base="made on the host"), difference=difference, tolerance=0.0)


def _gpu_cache(budget: Budget) -> Outcome:
    count, side = budget.size(16, 2), budget.size(96, 8)
    network = blocks(1, 1, dims=3).to(budget.device)
    host = [values(1, 1, side, side, side, seed=seed) for seed in range(count)]
    resident = [volume.to(budget.device) for volume in host]

    def epoch(volumes: list[Tensor]) -> None:
        for volume in volumes:
            forward_backward(network, volume.to(budget.device))

    arms = {"in host memory": partial(epoch, host), "in GPU memory": partial(epoch, resident)}
    return judged(
        budget.compare(arms, base="in host memory"),
        difference=apart(host, [one.cpu() for one in resident]),
        tolerance=0.0,
    )


CLAIMS = (
    Guidance(
        name="item-sync",
        claim="A loss that is read at the end instead of every step lets the host run ahead",
        source=f"{TUNING}: Avoid unnecessary CPU-GPU synchronization",
        needs="a CUDA device",
        run=_item_sync,
    ),
    Guidance(
        name="create-on-device",
        claim="A tensor made on the device is faster than one made on the host and copied",
        source=f"{TUNING}: Create tensors directly on the target device",
        needs="a CUDA device",
        run=_create_on_device,
    ),
    Guidance(
        name="gpu-cache",
        claim="Cases cached in GPU memory make an epoch faster than those in host memory",
        source=f"{MONAI}: Cache IO and transforms data to GPU",
        needs="a CUDA device",
        run=_gpu_cache,
    ),
)
