"""Milliseconds of an optimizer step: as MONAI and torch write it, and with each of Hasten's parts put in its place.

The network that all benchmarks share, 2 patches of 40x56x40 voxels, bf16 autocast and channels-last on a CPU, Muon and
a weight average. The arms take turns, step by step: `plain` (MONAI's network and DiceCELoss), `loss` (the loss as one
operation), `surgery` (norm and activation as one operation, cancelled biases left out) and `both`. The agreement of
loss and gradient with fp32 is recorded beside them, of `plain` and of `both`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness import Claim, arguments, busy_machine, finish, interleave, median_ratio

ARMS = {"plain": (False, False), "loss": (False, True), "surgery": (True, False), "both": (True, True)}
"""Whether the network is operated on, and whether the loss is Hasten's."""
SHAPE = (2, 1, 40, 56, 40)


def main(argv: Sequence[str] | None = None) -> None:
    given = arguments(str(__doc__).splitlines()[0], argv, rounds={"type": int, "help": "steps; default 40, quick 3"})
    others = busy_machine()
    rounds = given.rounds or (3 if given.quick else 40)
    steps = {name: make_step(surgery=surgery, loss=loss) for name, (surgery, loss) in ARMS.items()}
    figures = interleave(steps, rounds, warmup=1 if given.quick else 3)
    claims = [
        Claim.at_least(f"a plain step takes this many times the step with {name}", ratio, 1.0)
        for name in ("loss", "surgery", "both")
        if (ratio := median_ratio(figures["plain"], figures[name])) is not None
    ]
    results = {f"step/{name}_ms": values for name, values in figures.items()}
    settings = {"about": __doc__, "rounds": rounds, "shape": SHAPE, "bf16 against fp32": agreement()}
    finish("step", claims, results, given.out, given.quick, settings=settings, others_before=others)


def parts(*, surgery: bool, loss: bool) -> tuple[Any, Callable[..., Any]]:
    """Network and loss of an arm; the same weights in each."""
    import torch
    from monai.losses import DiceCELoss

    from benchmarks.tasks import network as shared_network
    from hasten.config.schema import LossConfig
    from hasten.nets.build import build_loss
    from hasten.nets.surgery.operate import operate

    torch.manual_seed(0)
    network = shared_network(3).to(memory_format=torch.channels_last_3d)
    if surgery:
        operate(network)
    monai = DiceCELoss(include_background=False, to_onehot_y=True, softmax=True, batch=True)
    return network, build_loss(LossConfig()) if loss else lambda output, label: monai(output.float(), label)


def batch() -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    return torch.randn(SHAPE, generator=generator), torch.randint(0, 3, SHAPE, generator=generator).to(torch.uint8)


def make_step(*, surgery: bool, loss: bool) -> Callable[[], float]:
    import torch

    from hasten.config.schema import TrainConfig
    from hasten.optim.average import average_of
    from hasten.optim.build import build_optimizer
    from hasten.runtime.allocator import keep_freed_memory
    from hasten.training.step import TrainStep
    from hasten.training.update import Update

    keep_freed_memory()
    network, compute = parts(surgery=surgery, loss=loss)
    optimizer = build_optimizer(network, TrainConfig(learning_rate=1e-6))
    update = Update(weights=network, optimizer=optimizer, average=average_of(network), clip_norm=12.0)
    step = TrainStep(
        network=network, loss=compute, update=update, precision="bf16", channels_last=True, device=torch.device("cpu")
    )
    image, label = batch()

    def once() -> float:
        begin = time.perf_counter()
        step(image, label, 0)
        return 1e3 * (time.perf_counter() - begin)

    return once


def agreement() -> dict[str, dict[str, float]]:
    """Relative distance of the weights' gradient, and difference of the loss, from those of `plain` in fp32."""
    import torch

    from hasten.runtime.precision import autocast

    def trace(precision: str, *, surgery: bool, loss: bool) -> tuple[float, Any]:
        network, compute = parts(surgery=surgery, loss=loss)
        network = copy.deepcopy(network)
        image, label = batch()
        with autocast(torch.device("cpu"), precision):
            output = network(image.contiguous(memory_format=torch.channels_last_3d))
        value = compute(output, label)
        value.backward()
        grads = [weight.grad.flatten() for weight in network.parameters() if weight.ndim > 1]
        return value.item(), torch.cat(grads)

    true_loss, truth = trace("fp32", surgery=False, loss=False)
    results = {}
    for name, precision in (("plain", "bf16"), ("both", "bf16"), ("both", "fp32")):
        value, gradient = trace(precision, surgery=ARMS[name][0], loss=ARMS[name][1])
        distance = ((gradient - truth).norm() / truth.norm()).item()
        results[f"{name} {precision}"] = {"loss": value - true_loss, "gradient": distance}
    return results


if __name__ == "__main__":
    main()
