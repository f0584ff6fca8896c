"""One rank of tests/distribute/test_horovod.py, started as torchrun would, or ("launched") by horovodrun."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from hasten.config.schema import DistributeConfig
from hasten.distribute.group import process_group
from hasten.distribute.horovod import Horovod, start
from hasten.distribute.world import World, detect_world
from tests.contracts.strategies import CASES, Trainee, compare, reference
from tests.distribute.ranks import tell

CONFIG = DistributeConfig(strategy="horovod", timeout_s=300)


@contextmanager
def watched(strategy: Horovod) -> Any:
    """The types of the gradients that are sent."""
    hvd, result = strategy._hvd, []
    original = hvd.allreduce_async_

    def listened(message: Tensor, **options: Any) -> int:
        result.append(str(message.dtype))
        handle: int = original(message, **options)
        return handle

    hvd.allreduce_async_ = listened
    try:
        yield result
    finally:
        hvd.allreduce_async_ = original


def sent(world: World, accumulate: int, **settings: Any) -> dict[str, Any]:
    """How many gradients a step sends, of what types, and how far the weights are from one process's."""
    case = replace(CASES["fp32"], steps=1, accumulate=accumulate)
    strategy = Horovod(world, replace(CONFIG, **settings))
    trainee = Trainee(case, strategy)
    with watched(strategy) as types:
        trainee.run(1)
    strategy.close()
    trained = sum(weight.requires_grad for weight in trainee.network.parameters())
    alone = reference(case).run(1)
    difference = compare(dict(trainee.network.state_dict()), dict(alone.network.state_dict()))
    return {"sent": len(types), "types": sorted(set(types)), "trained": trained, "difference": difference}


def averaged(world: World, weight: Tensor, **settings: Any) -> dict[str, Any]:
    """A gradient of 1 on rank 0, 2 on rank 1, as it lies in memory, averaged; and what rank 0 has, given to all."""
    network = nn.Module()
    network.weight = nn.Parameter(weight * (world.rank + 1))
    strategy = Horovod(world, replace(CONFIG, **settings))
    placed, _ = strategy.place(network, None)
    wrapped = strategy.wrap(placed)
    numbers = torch.arange(weight.numel(), dtype=weight.dtype).view(weight.shape)
    with watched(strategy) as types, strategy.sync(wrapped, last=True):
        (placed.weight * numbers * (world.rank + 1)).sum().backward()  # type: ignore[operator]
    strategy.close()
    gradient = placed.weight.grad
    assert isinstance(gradient, Tensor)
    mean = sum(range(1, world.size + 1)) / world.size
    return {
        "types": types,
        "gradient": bool((gradient == numbers * mean).all()) and gradient.dtype == weight.dtype,
        "weight": bool((placed.weight == weight).all()),
    }


def main() -> None:
    torch.set_num_threads(1)
    world = detect_world()
    with process_group(world, CONFIG, torch.device("cpu")):
        if sys.argv[1:] == ["launched"]:
            hvd = start(world)
            by_torch = torch.tensor([float(world.rank + 1)])
            distributed.all_reduce(by_torch)
            by_horovod = hvd.allreduce(torch.tensor([float(world.rank + 1)]), op=hvd.Sum)
            print(
                f"launched {world.launcher} {world.rank}/{world.size} {by_torch.item()} {by_horovod.item()}", flush=True
            )
            distributed.barrier()
            os._exit(0)
        flat = torch.ones(2, 3, 4, 4)
        turned = flat.contiguous(memory_format=torch.channels_last)
        results: dict[str, Any] = {
            "once": sent(world, 1),
            "twice": sent(world, 2),
            "short": sent(world, 1, gradients="fp16"),
        }
        results["flat"], results["turned"] = averaged(world, flat), averaged(world, turned)
        results["bf16"] = averaged(world, torch.ones(3, 3, dtype=torch.bfloat16))
        try:
            start(World(rank=1 - world.rank, size=world.size))
        except ValueError as error:
            results["swapped"] = str(error)
        tell(results)


if __name__ == "__main__":
    main()
