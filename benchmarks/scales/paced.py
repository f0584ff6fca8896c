"""A rank whose compute is sleep and whose gradients are real: `python -m benchmarks.scales.paced SETTINGS_JSON`.

So cores that ranks of one machine share decide nothing, and what is timed is DistributedDataParallel's own order of
buckets over the network. The last line it prints is JSON: the measured link, and the seconds of steps of each setting.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from hasten.config.schema import DistributeConfig
from hasten.distribute.group import process_group
from hasten.distribute.world import detect_world
from hasten.study.scale.predict.measure import measure_link


class _Paced(torch.autograd.Function):
    """The identity, whose backward pass takes a given time and gives the weights a gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, seconds: float) -> Tensor:
        ctx.size, ctx.seconds = weight.numel(), seconds
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        time.sleep(ctx.seconds)
        return gradient, torch.full((ctx.size,), 1e-3), None


class Paced(nn.Module):
    """`layers` of `layer_kib` of weights each, every one of which is a bucket."""

    def __init__(self, layers: int, layer_kib: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(layer_kib * 256) for _ in range(layers))
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, value: Tensor) -> Tensor:
        time.sleep(self.forward_s)
        for weight in self.weights:
            value = _Paced.apply(value, weight, self.backward_s / len(self.weights))
        return value


def timed_steps(settings: dict[str, Any], steps: int, world: int) -> list[float]:
    """Seconds of each step, of the slowest rank; two before them set DDP's buckets up."""
    network: nn.Module = Paced(**settings)
    if world > 1:
        network = DistributedDataParallel(network, bucket_cap_mb=settings["layer_kib"] / 1024, broadcast_buffers=False)
    taken = []
    for step in range(2 + steps):
        if world > 1:
            distributed.barrier()
        begin = time.perf_counter()
        network(torch.ones(1, requires_grad=True)).sum().backward()
        if step >= 2:
            taken.append(time.perf_counter() - begin)
        network.zero_grad(set_to_none=True)
    result = torch.tensor(taken, dtype=torch.float64)
    if world > 1:
        distributed.all_reduce(result, distributed.ReduceOp.MAX)
    return [float(value) for value in result]


def main(text: str) -> None:
    """text: {"seconds": for measuring the link, "steps": of each setting, "settings": [arguments of Paced, ...]}."""
    asked = json.loads(text)
    world, device = detect_world(), torch.device("cpu")
    with process_group(world, DistributeConfig(timeout_s=120), device) if world.size > 1 else nullcontext():
        link = measure_link(device, name="shaped", seconds=asked["seconds"]) if world.size > 1 else None
        steps = [timed_steps(one, asked["steps"], world.size) for one in asked["settings"]]
        print("\n" + json.dumps({"link": asdict(link) if link else None, "steps": steps}), flush=True)
        if world.size > 1:
            distributed.barrier()
        # Taking gloo's threads down, torch aborts now and then.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
