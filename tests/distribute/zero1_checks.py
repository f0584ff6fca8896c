"""One of several ranks that share an optimizer, and what it saw. `python -m tests.distribute.zero1_checks`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hasten.config.schema import DistributeConfig, TrainConfig
from hasten.distribute.ddp import Ddp
from hasten.distribute.group import process_group
from hasten.distribute.world import World, detect_world
from hasten.distribute.zero1 import Zero1
from hasten.optim.build import build_optimizer
from hasten.optim.schedule import set_rate
from tests.contracts.strategies import same_on_all
from tests.distribute.ranks import tell
from tests.training.runs import assert_equal

OPTIMIZERS = ("muon", "adamw", "sgd", "novograd", "lamb", "nvlamb", "lars")
Made = Callable[[nn.Module], torch.optim.Optimizer]


class Run:
    """A network that a strategy trains, step by step, at another rate each; `skipped` steps have a gradient of inf."""

    def __init__(self, strategy: Ddp, network: nn.Module, made: Made, *, fp16: bool = False) -> None:
        self.strategy = strategy
        self.network, _ = strategy.place(network, None)
        self.optimizer = strategy.share_optimizer(made(self.network))
        self.wrapped = strategy.wrap(self.network)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) if fp16 else None

    def step(self, index: int, *, broken: bool = False) -> None:
        world = self.strategy.world
        set_rate(self.optimizer, 0.01 / (1 + index))
        generator = torch.Generator().manual_seed(index * world.size + world.rank)
        loss = self.wrapped(torch.randn(2, 1, 8, 8, generator=generator)).square().mean()
        loss = loss * float("inf") if broken else loss
        if self.scaler is not None:
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        elif getattr(self.optimizer, "_step_supports_amp_scaling", False):
            loss.backward()
            self.optimizer.grad_scale, self.optimizer.found_inf = None, torch.tensor(float(broken))  # type: ignore[attr-defined]
            self.optimizer.step()
            del self.optimizer.grad_scale, self.optimizer.found_inf  # type: ignore[attr-defined]
        else:
            loss.backward()
            self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.network.named_parameters()}

    def state(self) -> dict[str, Any]:
        """Of the optimizer, as one process would have it; complete on rank 0."""
        state = {"optimizer": self.optimizer.state_dict()}
        result: dict[str, Any] = copy.deepcopy(self.strategy.gather_state(state)["optimizer"])
        return result


def network_of(world: World) -> nn.Module:
    """All kinds of parameters that an optimizer treats in its own way, channels last."""
    torch.manual_seed(world.rank)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.PReLU(), nn.Conv2d(8, 12, 3, padding=1),
        nn.GroupNorm(2, 12), nn.PReLU(12), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1),
        nn.ConvTranspose2d(12, 9, 2, 2), nn.PReLU(), nn.Conv2d(9, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 1),
    )  # fmt: skip
    # Which is neither trained nor sent.
    next(network.parameters()).requires_grad_(False)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def same(one: Any, other: Any) -> str:
    """What differs first, by a single bit."""
    try:
        assert_equal(one, other)
    except AssertionError as error:
        return str(error) or "differs"
    return ""


def against_ddp(world: World, made: Made, *, fp16: bool = False, network: Any = network_of) -> dict[str, Any]:
    """Three steps, one of them broken, a state that is moved, and two more, against DDP's five."""
    config = DistributeConfig(bucket_mb=0.001)
    ours = Run(Zero1(world, config), network(world), made, fp16=fp16)
    theirs = Run(Ddp(world, config), network(world), made, fp16=fp16)
    amp = getattr(theirs.optimizer, "_step_supports_amp_scaling", False)
    for index in range(3):
        for run in (ours, theirs):
            run.step(index, broken=amp and index == 1)
    results: dict[str, Any] = {"weights": same(ours.weights(), theirs.weights()), "agree": same_on_all(ours.weights())}
    own = ours.optimizer.state_dict()
    results["kept"], everything = size_of(own), size_of(theirs.state())
    results["share"] = results["kept"] / everything if everything else 0.0
    ours_whole, theirs_whole = ours.state(), theirs.state()
    results["state"] = same(ours_whole, theirs_whole) if world.first else ""
    # From one process's state on, in both directions. DDP sums other pieces in its first step than later on, so that
    # the bits are those of a fresh DDP.
    fresh = Run(Zero1(world, config), copy.deepcopy(ours.network), made, fp16=fp16)
    again = Run(Ddp(world, config), copy.deepcopy(ours.network), made, fp16=fp16)
    for run in (fresh, again):
        run.optimizer.load_state_dict(
            run.strategy.scatter_state({"optimizer": copy.deepcopy(theirs_whole)})["optimizer"]
        )
        if run.scaler is not None and ours.scaler is not None:
            run.scaler.load_state_dict(ours.scaler.state_dict())
    for index in (3, 4):
        for run in (ours, theirs, fresh, again):
            run.step(index)
    results["later"] = same(ours.weights(), theirs.weights())
    results["moved"] = same(fresh.weights(), again.weights())
    end = fresh.state()
    results["end"] = same(end, again.state()) if world.first else ""
    return results


def size_of(state: dict[str, Any]) -> int:
    """Bytes of an optimizer's tensors."""
    values = [value for each in state["state"].values() for value in each.values()]
    return sum(value.nbytes for value in values if isinstance(value, Tensor))


def configured(name: Any, **settings: Any) -> Made:
    config = TrainConfig(optimizer=name, learning_rate=0.01, **settings)
    return lambda network: build_optimizer(network, config)


def by_hand(network: nn.Module) -> torch.optim.Optimizer:
    """Groups of a user's own, one with its own rate, in an optimizer that can't skip a step."""
    first, *others = network.parameters()
    return torch.optim.AdamW([{"params": [first], "weight_decay": 0.1}, {"params": others}], lr=0.01, amsgrad=True)


def single_weight(_: World) -> nn.Module:
    """Fewer parameters than ranks."""
    torch.manual_seed(0)
    return nn.Conv2d(1, 3, 3, bias=False)


def compiled(world: World) -> str:
    """Whose backend compiles nothing, but takes the network apart as the others do."""
    config, made = DistributeConfig(), configured("muon")
    ours = Run(Zero1(world, config), network_of(world), made)
    ours.wrapped = ours.strategy.wrap(torch.compile(ours.network, backend="eager"))
    theirs = Run(Ddp(world, config), network_of(world), made)
    for run in (ours, theirs):
        run.step(0)
    return same(ours.weights(), theirs.weights())


def refused(world: World) -> str:
    """A state of other groups."""
    run = Run(Zero1(world, DistributeConfig()), network_of(world), configured("adamw"))
    state = build_optimizer(nn.Conv2d(1, 1, 1), TrainConfig(learning_rate=0.01, optimizer="adamw")).state_dict()
    try:
        run.optimizer.load_state_dict(state)
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    torch.set_num_threads(1)
    world = detect_world()
    with process_group(world, DistributeConfig(timeout_s=300), torch.device("cpu")):
        results: dict[str, Any] = {name: against_ddp(world, configured(name)) for name in OPTIMIZERS}
        results["fp16"] = against_ddp(world, configured("muon"), fp16=True)
        results["by hand"] = against_ddp(world, by_hand)
        for name in ("muon", "nvlamb", "adamw"):
            results[f"few {name}"] = against_ddp(world, configured(name), network=single_weight)
        tell({"runs": results, "compiled": compiled(world), "refused": refused(world)})


if __name__ == "__main__":
    main()
