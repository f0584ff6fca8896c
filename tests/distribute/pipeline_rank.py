"""One rank of tests/distribute/test_pipeline.py: the real networks in a pipeline, against one process.

The process takes a batch in as many pieces, one after the other (`accumulate`), so that losses and norms see the same.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import Tensor, nn

from hasten.checkpoint.state import restore_state, training_state
from hasten.config.schema import DistributeConfig, LossConfig, NetworkConfig, TrainConfig
from hasten.distribute.group import process_group
from hasten.distribute.pipeline import Pipeline
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World, detect_world
from hasten.nets.build import build_network
from hasten.nets.losses.make_loss import build_loss
from hasten.nets.surgery.operate import operate
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer
from hasten.runtime.precision import memory_format
from hasten.training.step import TrainStep
from hasten.training.update import Update
from tests.contracts.strategies import compare
from tests.distribute.ranks import tell

PIECES = 2
NETS: dict[str, dict[str, Any]] = {
    "unet": {"norm": "batch", "num_res_units": 1},
    "segresnet": {},
    "dynunet": {"deep_supervision": 1, "num_res_units": 1},
    "plainconvunet": {"deep_supervision": 1},
}


def train(
    strategy: Strategy, *, name: str = "unet", net: dict[str, Any] | None = None, precision: Any = "fp32",
    channels_last: bool = False, sides: tuple[int, ...] = (16, 16), optimizer: Any = "adamw",
    state: dict[str, Any] | None = None,
) -> tuple[TrainStep, dict[str, Any], list[float]]:  # fmt: skip
    """The step, the state after a step for each of `sides`, and the losses."""
    torch.manual_seed(0)
    config = NetworkConfig(name=name, channels=(4, 8, 16), strides=((2, 2, 2),) * 2, **(net or {}))
    network = build_network(config, num_channels=1, num_classes=2, spatial_dims=3)
    operate(network, torch.randn(1, 1, 16, 16, 16))
    network.to(memory_format=memory_format(3, channels_last))  # type: ignore[call-overload]
    network, average = strategy.place(network, average_of(network))
    settings = TrainConfig(optimizer=optimizer, learning_rate=0.01)
    made = strategy.share_optimizer(build_optimizer(network, settings))
    update = Update(weights=network, optimizer=made, average=average, clip_norm=0.5, strategy=strategy)
    if state is not None:
        restore_state(strategy.scatter_state(copy.deepcopy(state)), network=network, optimizer=made, average=average)
    step = TrainStep(
        network=strategy.wrap(network.train()),
        loss=build_loss(LossConfig()),
        update=update,
        precision=precision,
        channels_last=channels_last,
        device=torch.device("cpu"),
        accumulate=PIECES if strategy.world.size == 1 else 1,
        strategy=strategy,
    )
    losses = []
    for index, side in enumerate(sides):
        image = torch.randn(2 * PIECES, 1, side, side, side, generator=torch.Generator().manual_seed(index))
        losses.append(float(step(image, (image > 0.5).to(torch.uint8), index)))
    result = training_state(network=network, optimizer=made, step=len(sides), average=average)
    return step, strategy.gather_state(result), losses


def differences(world: World, **how: Any) -> dict[str, float]:
    """Of a pipeline from a single process, complete on rank 0."""
    pipeline = Pipeline(world, DistributeConfig(micro_batches=PIECES))
    step, state, losses = train(pipeline, **how)
    average = step.update.average
    assert average is not None
    whole = [dict(pipeline.whole(module).state_dict()) for module in (step.update.weights, average)]
    if not world.first:
        return {}
    alone, wanted, expected = train(Strategy(World(), DistributeConfig()), **how)
    weights = [dict(module.state_dict()) for module in (alone.update.weights, alone.update.average) if module]
    return {
        "network": compare(dict(state["network"]), dict(wanted["network"])),
        "average": compare(dict(state["average"]), dict(wanted["average"])),
        "optimizer": compare(state["optimizer"], wanted["optimizer"]),
        "whole": compare(whole, weights),
        "losses": compare(losses, expected),
    }


def kept(world: World) -> dict[str, Any]:
    """What a rank holds of weights, gradients and moments, and whether its stage is one of torch's schedules."""
    pipeline = Pipeline(world, DistributeConfig(micro_batches=PIECES))
    step, _, _ = train(pipeline, optimizer="muon")
    network: nn.Module = step.update.weights
    moments = sum(value.numel() for state in step.update.optimizer.state.values() for value in state.values()
                  if isinstance(value, Tensor) and value.ndim)  # fmt: skip
    return {
        "weights": sum(weight.numel() for weight in network.parameters()),
        "average": sum(weight.numel() for weight in step.update.average.parameters()),  # type: ignore[union-attr]
        "moments": moments,
        "whole": sum(weight.numel() for weight in pipeline.whole(network).parameters()),
        "schedule": [type(schedule).__name__ for schedule in pipeline._schedules.values()],
    }


def left_out(world: World) -> dict[str, Any]:
    """A gradient of one stage that is not finite: no stage takes the step."""
    pipeline = Pipeline(world, DistributeConfig(micro_batches=PIECES))
    step, _, _ = train(pipeline, sides=(16,))
    before = [weight.detach().clone() for weight in step.update.weights.parameters()]
    if world.first:
        next(weight for weight in step.update.weights.parameters() if weight.requires_grad).register_hook(
            lambda gradient: gradient * float("nan")
        )
    image = torch.randn(2 * PIECES, 1, 16, 16, 16)
    step(image, (image > 0).to(torch.uint8), 1)
    after = list(step.update.weights.parameters())
    same = all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return {"skipped": int(step.update.skipped), "same": same}


def main() -> None:
    torch.set_num_threads(1)
    world = detect_world()
    with process_group(world, DistributeConfig(timeout_s=300), torch.device("cpu")):
        results: dict[str, Any] = {name: differences(world, name=name, net=net) for name, net in NETS.items()}
        # A second form of batch has a schedule of its own; one of a single patch a piece among them.
        results["sides"] = differences(world, sides=(16, 24, 16))
        results["muon"] = differences(world, optimizer="muon")
        results["bf16"] = differences(world, precision="bf16", channels_last=True)
        results["dropout"] = train(Pipeline(world, DistributeConfig(micro_batches=PIECES)), net={"dropout": 0.2})[2]
        results["kept"], results["left_out"] = kept(world), left_out(world)
        tell(results)


if __name__ == "__main__":
    sys.exit(main())
