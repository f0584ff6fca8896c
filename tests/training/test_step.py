from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasten.config.schema import LossConfig, NetworkConfig, TrainConfig
from hasten.nets.build import build_loss, build_network
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer, one_cycle
from hasten.runtime.precision import memory_format
from hasten.training.step import TrainStep
from hasten.training.update import Update

STEPS = 5
CPU = torch.device("cpu")


def network_of(spatial_dims: int, dropout: float = 0.0) -> nn.Module:
    config = NetworkConfig(
        name="unet",
        channels=(4, 8),
        strides=((2, 2, 2) if spatial_dims == 3 else (1, 2, 2),),
        num_res_units=1,
        dropout=dropout,
    )
    torch.manual_seed(0)
    return build_network(config, num_channels=1, num_classes=3, spatial_dims=spatial_dims)


def step_of(network: nn.Module, spatial_dims: int = 3, **given: Any) -> TrainStep:
    channels_last = given.get("channels_last", False)
    network.to(memory_format=memory_format(spatial_dims, channels_last))
    parts: dict[str, Any] = {
        "weights": network,
        "optimizer": build_optimizer(network, TrainConfig(optimizer="adamw", learning_rate=1e-2, weight_decay=0.1)),
        "schedule": partial(one_cycle, steps=STEPS, peak=1e-2, warmup_fraction=0.4),
        "average": average_of(network),
        "average_decay": 0.9,
        "clip_norm": 0.5,
        "scaler": torch.amp.GradScaler("cpu", enabled=False),
    }
    update = Update(**{name: given.pop(name, value) for name, value in parts.items()})
    fields: dict[str, Any] = {
        "network": network,
        "loss": build_loss(LossConfig()),
        "update": update,
        "precision": "fp32",
        "channels_last": False,
        "spatial_dims": spatial_dims,
        "device": CPU,
    }
    return TrainStep(**{**fields, **given})


def batches(spatial_dims: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(5)
    shape = (2, 1, *(8,) * spatial_dims)
    return [
        (
            torch.randn(shape, generator=generator),
            torch.randint(3, shape, generator=generator).to(torch.uint8),
        )
        for _ in range(STEPS)
    ]


def reference(spatial_dims: int = 3, *, clip_norm: float = 0.5, decay: float = 0.9) -> tuple[list[Tensor], ...]:
    """The plain loop that anyone would write: losses, weights, averages. Written out, and sharing only the loss."""
    network = network_of(spatial_dims)
    matrices = [p for p in network.parameters() if p.ndim > 1]
    vectors = [p for p in network.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=1e-2,
        betas=(0.9, 0.99),
        fused=True,
    )
    criterion = build_loss(LossConfig())
    averages = [p.detach().clone() for p in network.parameters()]
    losses = []
    for index, (image, label) in enumerate(batches(spatial_dims)):
        if index < 2:  # a warm-up of 0.4 x 5 steps
            rate = 1e-2 * (0.04 + 0.96 * index / 2)
        else:
            rate = 1e-2 * (0.001 + 0.999 * 0.5 * (1 + math.cos(math.pi * (index - 2) / 3)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = criterion(network(image), label)
        loss.backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(network.parameters(), clip_norm)
        optimizer.step()
        losses.append(loss.detach())
        share = 1.0 - min(decay, (1 + index) / (10 + index))
        with torch.no_grad():
            for average, parameter in zip(averages, network.parameters(), strict=True):
                average.lerp_(parameter, share)
    return losses, [p.detach() for p in network.parameters()], averages


def run(step: TrainStep, spatial_dims: int = 3) -> list[Tensor]:
    return [step(image, label, index) for index, (image, label) in enumerate(batches(spatial_dims))]


def weights_of(module: nn.Module | None) -> list[Tensor]:
    assert module is not None
    return [parameter.detach() for parameter in module.parameters()]


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    for left, right in zip(actual, expected, strict=True):
        assert torch.equal(left, right)


def matrices(weights: list[Tensor]) -> list[Tensor]:
    """Without the vectors: a bias before a norm has no gradient but rounding, which Adam blows up to full steps."""
    return [weight for weight in weights if weight.ndim > 1]


def distance(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Norm of the difference over the norm, over all tensors together."""
    left, right = (torch.cat([tensor.flatten() for tensor in side]) for side in (actual, expected))
    return float((left - right).norm() / right.norm())


@pytest.mark.parametrize("spatial_dims", [2, 3])
def test_fp32_is_bit_for_bit_the_plain_loop(spatial_dims: int) -> None:
    step = step_of(network_of(spatial_dims), spatial_dims)
    losses, weights, averages = reference(spatial_dims)
    assert_same(run(step, spatial_dims), losses)
    assert_same(weights_of(step.update.weights), weights)
    assert_same(weights_of(step.update.average), averages)
    assert not torch.equal(weights[0], averages[0])


BF16_LOSS, BF16_WEIGHTS = 0.02, 0.05
"""A bf16 product has 8 bits: the losses agree to 2 %, the weights after five steps (which Adam makes of equal size
whatever the gradient's is) to 5 %."""


@pytest.mark.parametrize("channels_last", [False, True])
def test_bf16_follows_the_plain_loop(channels_last: bool) -> None:
    step = step_of(network_of(3), precision="bf16", channels_last=channels_last)
    losses, weights, _ = reference()
    result = run(step)
    assert all(loss.dtype == torch.float32 for loss in result)
    assert not torch.equal(torch.stack(result), torch.stack(losses))  # autocast is on
    assert distance(result, losses) < BF16_LOSS
    assert distance(weights_of(step.update.weights), weights) < BF16_WEIGHTS
    assert all(parameter.dtype == torch.float32 for parameter in step.update.weights.parameters())


def test_a_clip_norm_of_0_does_not_clip() -> None:
    step = step_of(network_of(3), clip_norm=0.0)
    losses, weights, _ = reference(clip_norm=0.0)
    assert_same(run(step), losses)
    assert_same(weights_of(step.update.weights), weights)
    assert not torch.equal(weights[0], reference()[1][0])  # the clip of the other tests does clip


def test_a_step_that_overflows_fp16_is_left_out() -> None:
    step = step_of(network_of(3), precision="fp16", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**60))
    before = copy.deepcopy(weights_of(step.update.weights))
    image, label = batches()[0]
    step(image, label, 0)
    assert_same(weights_of(step.update.weights), before)
    assert step.update.scaler.get_scale() < 2.0**60


class Plain(torch.optim.SGD):
    """An optimizer that does not know torch's protocol for leaving a step out."""

    _step_supports_amp_scaling = False


@pytest.mark.parametrize("kind", ["fused", "plain"])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(kind: str) -> None:
    network = network_of(3)
    optimizer = (
        torch.optim.AdamW(network.parameters(), lr=1e-2, fused=True)
        if kind == "fused"
        else Plain(network.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1)
    )
    step = step_of(network, optimizer=optimizer, average=None)
    (image, label), *rest = batches()
    step(image, label, 0)
    before, moments = copy.deepcopy(weights_of(network)), copy.deepcopy(optimizer.state_dict())
    step(image * math.inf, label, 1)
    assert_same(weights_of(network), before)
    for result, wanted in zip(optimizer.state_dict()["state"].values(), moments["state"].values(), strict=True):
        assert all(torch.equal(result[name], wanted[name]) for name in wanted)
    assert step.update.skipped.item() == 1
    step(*rest[0], 2)
    assert not torch.equal(weights_of(network)[0], before[0])
    assert step.update.skipped.item() == 1


@pytest.mark.parametrize("accumulate", [2, 3, 4, 5, 7])
def test_pieces_of_a_batch_give_the_gradient_of_the_whole(accumulate: int) -> None:
    generator = torch.Generator().manual_seed(5)
    image = torch.randn(5, 1, 8, 8, 8, generator=generator)
    label = torch.randint(3, (5, 1, 8, 8, 8), generator=generator).to(torch.uint8)

    def outcome(pieces: int) -> tuple[list[Tensor], list[Tensor]]:
        # Instance norms and a mean over samples: nothing in this step sees more than one sample at a time.
        network = network_of(3)
        loss = build_loss(LossConfig(batch=False))
        step = step_of(network, loss=loss, accumulate=pieces)
        return [step(image, label, index) for index in range(3)], weights_of(network)

    losses, weights = outcome(accumulate)
    whole_losses, whole_weights = outcome(1)
    assert distance(losses, whole_losses) < 1e-5
    assert distance(matrices(weights), matrices(whole_weights)) < 1e-4
