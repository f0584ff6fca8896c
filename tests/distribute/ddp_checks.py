"""One of two ranks that train by DDP in several ways, and what it saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from hasten.config.schema import DistributeConfig
from hasten.distribute.ddp import Ddp, broadcast_weights
from hasten.distribute.world import World
from tests.contracts.states import compare, everyones, same_on_all
from tests.contracts.strategies import CASES, Case, Trainee, reference


def sent(world: World, **settings: Any) -> list[int]:
    """Of each bucket of a third step: how many gradients were ready when it was sent; last, how many there are."""
    strategy = Ddp(world, DistributeConfig(**settings))
    trainee = Trainee(Case(), strategy)
    wrapped = trainee.step.network
    assert isinstance(wrapped, DistributedDataParallel)
    ready: list[int] = []
    calls: list[int] = []

    def listen(state: None, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
        calls.append(len(ready))
        return default_hooks.allreduce_hook(None, bucket)

    # torch would look at its annotations, which are strings.
    wrapped.register_comm_hook(None, lambda state, bucket: listen(state, bucket))
    parameters = list(trainee.network.parameters())
    trainee.run(2)
    # Autograd's own order: a hook of a leaf runs before the reducer's, so the last bucket is sent when all are ready.
    for parameter in parameters:
        parameter.register_hook(lambda _: ready.append(1))
    calls.clear()
    trainee.run(1, 2)
    return [*calls, len(parameters)]


class Unused(nn.Module):
    """Its layer `spare` is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.used(image)
        return result


def told_of_unused(world: World) -> str:
    strategy = Ddp(world, DistributeConfig())
    network, _ = strategy.place(Unused(), None)
    wrapped = strategy.wrap(network)
    try:
        for _ in range(3):
            wrapped(torch.ones(1, 2)).sum().backward()
            strategy.total_norm([value.grad for value in network.parameters() if value.grad is not None])
            network.zero_grad()
    except (ValueError, SystemExit) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def in_half(world: World, gradients: Any) -> dict[str, Any]:
    case = CASES["fp32"]
    trainee = Trainee(case, Ddp(world, DistributeConfig(gradients=gradients))).run(case.steps)
    wanted = reference(case).run(case.steps).network.state_dict()
    return {"agree": same_on_all(trainee.whole()), "weights": compare(trainee.network.state_dict(), wanted)}


def own_norms(world: World) -> dict[str, Any]:
    """Without `sync_norm`."""
    case = Case(norm="batch")
    trainee = Trainee(case, Ddp(world, DistributeConfig())).run(case.steps)
    weights = dict(trainee.network.named_parameters())
    moments = {name: value for name, value in trainee.network.named_buffers() if name.endswith("running_mean")}
    saved = trainee.state(2)["network"]
    assert moments
    return {
        "weights": same_on_all(weights),
        "moments": same_on_all(moments),
        "own": max(compare(saved[name], value) for name, value in moments.items()),
    }


def given(world: World) -> dict[str, Any]:
    """What `broadcast_weights` does to weights of several types and memory formats."""
    torch.manual_seed(world.rank)
    network = nn.Sequential(nn.Conv3d(2, 4, 3), nn.BatchNorm3d(4), *[nn.Linear(3, 3) for _ in range(20)], nn.PReLU())
    network.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    network[3].double()
    convolution: nn.Conv3d = network[0]  # type: ignore[assignment]
    mine = convolution.weight.detach().clone(memory_format=torch.contiguous_format)
    before = same_on_all(network.state_dict())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        broadcast_weights(network)
    first = everyones(mine)[0]
    return {
        "before": before,
        "after": same_on_all(network.state_dict()),
        "of_first": bool(torch.equal(convolution.weight, first)),
        "format": convolution.weight.is_contiguous(memory_format=torch.channels_last_3d),
        "messages": sum(event.name == "c10d::broadcast_" for event in recorded.events()),
        "tensors": len(list(network.parameters())) + len(list(network.buffers())),
    }


def channels_last(world: World) -> dict[str, Any]:
    """Weights, gradients and a step in that format."""
    case = Case(optimizer="adamw", rate=0.01)
    trainee = Trainee(case, Ddp(world, DistributeConfig()), channels_last=True)
    gradients: list[bool] = []

    def look(*_: Any) -> None:
        banks = [weight for weight in trainee.network.parameters() if weight.ndim == 4 and min(weight.shape) > 1]
        for weight in banks:
            assert weight.grad is not None
            gradients.append(weight.grad.stride() == weight.stride())

    trainee.optimizer.register_step_pre_hook(look)
    trainee.run(case.steps)
    banks = [weight for weight in trainee.network.parameters() if weight.ndim == 4 and min(weight.shape) > 1]
    return {
        "weights": all(weight.is_contiguous(memory_format=torch.channels_last) for weight in banks),
        "gradients": all(gradients),
        "looked": len(gradients),
        "difference": compare(trainee.network.state_dict(), reference(case).run(case.steps).network.state_dict()),
    }


def findings(world: World) -> dict[str, Any]:
    """On one of the ranks of a joined world."""
    checks: dict[str, Callable[[], Any]] = {
        "beside": lambda: sent(world, bucket_mb=0.002),
        "large": lambda: sent(world),
        "unused": lambda: told_of_unused(world),
        "fp16": lambda: in_half(world, "fp16"),
        "bf16": lambda: in_half(world, "bf16"),
        "own_norms": lambda: own_norms(world),
        "given": lambda: given(world),
        "channels_last": lambda: channels_last(world),
    }
    return {name: check() for name, check in checks.items()}
