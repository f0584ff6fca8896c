"""One of two ranks that share weights in shards, and what it saw. `python -m tests.distribute.fsdp_checks`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor

from hasten.config.schema import DistributeConfig, TrainConfig
from hasten.distribute.fsdp import Fsdp, sharded_blocks
from hasten.distribute.group import process_group
from hasten.distribute.world import World, detect_world
from hasten.nets.recompute import recompute_modules
from hasten.nets.surgery import operate
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer
from hasten.runtime.precision import autocast
from tests.contracts.strategies import CASES, Case, Trainee, compare, reference, same_on_all
from tests.distribute.ranks import tell
from tests.nets.examples import NETWORKS as EXAMPLES

CPU = torch.device("cpu")


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 1, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv3d(1, 1, 3, padding=1), nn.ReLU())
        self.second[0].weight = self.first[0].weight

    def forward(self, image: Tensor) -> Tensor:
        result: Tensor = self.second(self.first(image))
        return result


class Views(nn.Module):
    """Blocks that return a view of what they computed, which is then changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4), nn.Flatten(2))
        self.second = nn.Sequential(nn.Conv1d(4, 4, 3), nn.InstanceNorm1d(4), nn.Flatten(1))

    def forward(self, image: Tensor) -> Tensor:
        middle = self.first(image).mul_(2.0)
        result: Tensor = self.second(middle).mul_(3.0).add_(1.0)
        return result.exp()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "unet": lambda: EXAMPLES["unet"](3),
    "dynunet": lambda: EXAMPLES["dynunet deep"](3),
    "segresnet": lambda: EXAMPLES["segresnet"](3),
    "plainconvunet": lambda: EXAMPLES["plainconvunet"](3),
    "tied": Tied,
    "views": Views,
}


def sharded(network: nn.Module, world: World, **settings: Any) -> tuple[Fsdp, nn.Module]:
    strategy = Fsdp(world, DistributeConfig(**settings))
    placed, _ = strategy.place(network, None)
    return strategy, placed.train()


def network_of(name: str, *, last: bool = False) -> nn.Module:
    torch.manual_seed(0)
    network = NETWORKS[name]().double()
    operate(network)
    return network.to(memory_format=torch.channels_last_3d if last else torch.contiguous_format)  # type: ignore[call-overload]


def image_of(world: World | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
    """A rank's share of a batch, or all of it: (B, 1, 16, 16, 16)."""
    image = torch.randn(4, 1, 16, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    return image if world is None else image.chunk(world.size)[world.rank]


def gradients(network: nn.Module) -> list[Tensor | None]:
    """Whole ones."""
    results = [weight.grad for weight in network.parameters()]
    return [one.full_tensor() if isinstance(one, DTensor) else one for one in results]


def backward(network: nn.Module, image: Tensor) -> None:
    network(image).square().mean().backward()


def of_network(world: World, name: str, *, last: bool = False) -> dict[str, Any]:
    """Gradients against one process with the whole batch, what a rank keeps, and what `whole` and states are."""
    plain = network_of(name, last=last).train()
    backward(plain, image_of())
    strategy, network = sharded(network_of(name, last=last), world)
    backward(network, image_of(world))
    wanted = [weight.grad for weight in plain.parameters()]
    results = {"gradients": compare(gradients(network), wanted), "blocks": len(sharded_blocks(network_of(name)))}
    kept = sum(weight.to_local().nbytes for weight in network.parameters() if isinstance(weight, DTensor))
    results["kept"] = kept / sum(weight.nbytes for weight in plain.parameters())
    whole = strategy.whole(network)
    state = strategy.gather_state(
        {"network": network.state_dict(), "average": None, "optimizer": {"state": {}, "param_groups": []}}
    )["network"]
    results["whole"] = compare(dict(whole.state_dict()), dict(plain.state_dict()))
    results["strides"] = [weight.stride() for weight in whole.parameters()] == [
        weight.stride() for weight in plain.parameters()
    ]
    if world.first:
        results["state"] = compare(dict(state), dict(plain.state_dict()))
        # While the other ranks do something else: it is a plain module.
        results["alone"] = compare(whole.eval()(image_of()), plain.eval()(image_of()))
        named = plain.state_dict()
        results["names"] = len({value.data_ptr() for value in state.values()}) == len(
            {value.data_ptr() for value in named.values()}
        )
    return results


def recomputed(world: World) -> dict[str, Any]:
    """The blocks of a UNet computed again in the backward pass, and not."""
    results: dict[str, Any] = {}
    kept: dict[bool, list[Tensor | None]] = {}
    for again in (False, True):
        network = network_of("unet")
        if again:
            names = [name for name, module in network.named_modules() if type(module).__name__ == "ResidualUnit"]
            recompute_modules(network, names)
            results["modules"] = len(names)
        results[f"blocks_{again}"] = len(sharded_blocks(network))
        _, network = sharded(network, world)
        saved: dict[int, int] = {}

        def pack(tensor: Tensor, saved: dict[int, int] = saved) -> Tensor:
            saved[tensor.untyped_storage().data_ptr()] = tensor.nbytes
            return tensor

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = network(image_of(world)).square().mean()
            loss.backward()
        kept[again] = gradients(network)
        results[f"saved_{again}"] = sum(saved.values())
        results[f"gathers_{again}"] = sum("allgather" in event.name for event in recorded.events())
    results["gradients"] = compare(kept[True], kept[False])
    return results


def in_half(world: World, dtype: Any) -> float:
    case = CASES["fp32"]
    trainee = Trainee(case, Fsdp(world, DistributeConfig(gradients=dtype))).run(case.steps)
    return compare(trainee.whole()[0], dict(reference(case).run(case.steps).network.state_dict()))


def under_autocast(world: World) -> dict[str, Any]:
    """Against DDP's arithmetic: the mean of the gradients of each rank's share."""
    plain = network_of("unet").float().train()
    shares = image_of(dtype=torch.float32).chunk(world.size)
    for share in shares:
        with autocast(CPU, "bf16"):
            output = plain(share)
        (output.float().square().mean() / world.size).backward()
    _, network = sharded(network_of("unet").float(), world)
    with autocast(CPU, "bf16"):
        output = network(shares[world.rank])
    output.float().square().mean().backward()
    return {
        "dtype": str(output.dtype),
        "gradients": compare(gradients(network), [weight.grad for weight in plain.parameters()]),
    }


def not_finite(world: World) -> dict[str, Any]:
    """One value of the last rank's share: no rank moves."""
    trainee = Trainee(Case(optimizer="adamw", rate=0.01), Fsdp(world, DistributeConfig())).run(1)
    before = trainee.whole()[0]
    strategy, weight = trainee.strategy, next(trainee.network.parameters())
    for each in trainee.network.parameters():
        each.grad = torch.zeros_like(each)
    if world.rank == world.size - 1:
        assert isinstance(weight.grad, DTensor)
        weight.grad.to_local().view(-1)[0] = float("inf")
    trainee.update.apply(1)
    norm = strategy.total_norm([torch.ones(())])
    return {
        "skipped": int(trainee.update.skipped),
        "moved": compare(trainee.whole()[0], before),
        "norm": float(norm),
        "plain": type(norm) is Tensor,
    }


def memory(world: World) -> dict[str, Any]:
    """Bytes of weights, average and moments on this rank, of those of one process."""
    network = network_of("unet")
    strategy = Fsdp(world, DistributeConfig())
    average: nn.Module | None = average_of(network)
    everything = sum(weight.nbytes for weight in network.parameters())
    network, average = strategy.place(network, average)
    assert average is not None
    train = TrainConfig(optimizer="adamw", learning_rate=0.01)
    optimizer = strategy.share_optimizer(build_optimizer(network, train))
    backward(network, image_of(world))
    optimizer.step()
    moments = [
        value for values in optimizer.state_dict()["state"].values() for value in values.values() if value.ndim > 0
    ]
    weights = [weight.to_local() for module in (network, average) for weight in module.parameters()]  # type: ignore[attr-defined]
    return {
        "kept": sum(tensor.nbytes for tensor in (*moments, *weights)) / (4 * everything),
        "whole": strategy.whole(average).training,
        "skeleton": sum(weight.device.type != "meta" for weight in strategy._skeleton.parameters()),  # type: ignore[union-attr]
        "grad": any(weight.requires_grad for weight in strategy.whole(network).parameters()),
    }


def refused(world: World) -> str:
    """A state of another network, told and not loaded."""
    trainee = Trainee(Case(), Fsdp(world, DistributeConfig()))
    state = copy.deepcopy(reference(Case()).state(0))
    name = next(iter(state["network"]))
    state["network"][name] = state["network"][name][:, :, :1]
    try:
        trainee.restore(state)
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    world = detect_world()
    with process_group(world, DistributeConfig(timeout_s=300), CPU):
        results = {
            "networks": {name: of_network(world, name) for name in NETWORKS},
            "channels_last": of_network(world, "unet", last=True),
            "recomputed": recomputed(world),
            "fp16": in_half(world, "fp16"),
            "bf16": in_half(world, "bf16"),
            "autocast": under_autocast(world),
            "not_finite": not_finite(world),
            "memory": memory(world),
            "refused": refused(world),
        }
        results["agree"] = same_on_all(torch.zeros(1))
        distributed.barrier()
        tell(results)


if __name__ == "__main__":
    main()
