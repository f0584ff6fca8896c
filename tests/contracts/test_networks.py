"""What every network has to do, whatever its name: a new one in the schema is tested here without a new test."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, get_args, get_type_hints

import pytest
import torch
from torch import nn

from hasten.config.networks import NETWORKS
from hasten.config.schema import Activation, LossConfig, LossName, NetworkConfig, NetworkName, TrainConfig
from hasten.nets.build import build_loss, build_network, divisor
from hasten.nets.surgery.fallback import keep_fp32, tiny_layers
from hasten.observe.env import cpu_has_bf16
from hasten.optim.build import build_optimizer, one_cycle
from hasten.runtime.precision import autocast, memory_format, to_layout
from hasten.training.step import TrainStep
from hasten.training.update import Update

CPU = torch.device("cpu")


def choices(config: type, field: str) -> tuple[Any, ...]:
    return get_args(get_type_hints(config)[field])


NAMES: tuple[str, ...] = get_args(NetworkName)
LOSSES: tuple[str, ...] = get_args(LossName)
NORMS = choices(NetworkConfig, "norm")
ACTS = get_args(Activation)
FAST = tuple(name for name in NAMES if name != "swinunetr")
"""Those that a small image is enough for."""
CASES = [
    pytest.param(name, loss, dims, marks=[pytest.mark.slow] if (name, dims) == ("swinunetr", 3) else [])
    for name in NAMES
    for loss in (LOSSES if name == "unet" else LOSSES[:1])
    for dims in (2, 3)
]
"""A network, a loss and dimensions: that all losses go with the outputs of a network is seen on one of them."""


def config_of(name: str, dims: int = 3, **settings: Any) -> NetworkConfig:
    """A small one; settings that it does not have are left out."""
    built_in = NETWORKS[name]
    # Without AVX-512, oneDNN corrupts memory in strided 1x1 convolutions of 4 channels in channels-last.
    first = 12 if name == "swinunetr" else 8
    channels = built_in.channels(first, 3)
    stride = (2, 2, 2) if dims == 3 else (1, 2, 2)
    had = {key: value for key, value in settings.items() if key in built_in.settings}
    return NetworkConfig(**{"name": name, "channels": channels, "strides": (stride,) * (len(channels) - 1), **had})


def network_of(config: NetworkConfig, *, channels: int = 1, classes: int = 3, dims: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return build_network(config, num_channels=channels, num_classes=classes, spatial_dims=dims)


def batch_of(name: str, dims: int = 3, *, classes: int = 3, side: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise, and labels that can be told from it."""
    sides = [side] * dims if name in FAST else ([32, 32, 64][-dims:])
    image = torch.randn(2, 1, *sides, generator=torch.Generator().manual_seed(1))
    return image, (image > 0).to(torch.uint8) * (classes - 1)


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        pytest.param(name, dims, marks=[pytest.mark.slow] if (name, dims) == ("swinunetr", 3) else [])
        for name in NAMES
        for dims in (2, 3)
    ],
)
@pytest.mark.parametrize(("channels", "classes"), [(1, 2), (3, 5)])
def test_scores_have_the_shape_of_the_input(name: str, dims: int, channels: int, classes: int) -> None:
    config = config_of(name, dims)
    network = network_of(config, channels=channels, classes=classes, dims=dims).eval()
    unit = divisor(config)[-dims:]
    with torch.no_grad():
        for times in ((2, 2, 2), (2, 4, 3)) if name in FAST else ((1, 1, 2),):
            sides = [by * count for by, count in zip(unit, times[-dims:], strict=True)]
            assert network(torch.randn(2, channels, *sides)).shape == (2, classes, *sides)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("act", ACTS)
def test_a_gradient_reaches_every_parameter(name: str, norm: str, act: str) -> None:
    dims = 3 if name in FAST else 2
    network = network_of(config_of(name, dims, norm=norm, act=act, dropout=0.1), dims=dims).train()
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.constant_(parameter, 0.5)  # residual branches that begin as nothing
    image, label = batch_of(name, dims, side=8)
    build_loss(LossConfig())(network(image), label).backward()
    for key, parameter in network.named_parameters():
        if not parameter.requires_grad:
            assert key.startswith("decoder.seg_layers.0."), key  # nnU-Net's output of a coarser level
            continue
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        # A bias before a norm is subtracted again, so that only noise reaches it.
        assert parameter.ndim == 1 or parameter.grad.any(), key


@pytest.mark.parametrize(("name", "loss", "dims"), CASES)
def test_a_memory_format_changes_no_number_and_bf16_few(name: str, dims: int, loss: str) -> None:
    network = network_of(config_of(name, dims), dims=dims).train()
    image, label = batch_of(name, dims)
    image = image if dims == 3 else image[:, :, None]

    def outcome(precision: str, last: bool) -> tuple[float, float]:
        layout = memory_format(dims, last)
        network.to(memory_format=layout)  # type: ignore[call-overload]
        with autocast(CPU, precision):
            output = network(to_layout(image, dims, layout))
        value = build_loss(LossConfig(name=loss))(output, label)  # type: ignore[arg-type]
        value.backward()
        norm = nn.utils.get_total_norm([weight.grad for weight in network.parameters() if weight.grad is not None])
        network.zero_grad()
        return value.item(), norm.item()

    reference = outcome("fp32", False)
    assert outcome("fp32", True) == pytest.approx(reference, rel=1e-3)
    # Elsewhere no run is in bf16, which torch emulates, and whose gradients end the process in some layouts.
    if cpu_has_bf16():
        # As a run does: torch's gradients in bf16 are wrong there.
        example = to_layout(image, dims, memory_format(dims, False))
        keep_fp32(network, tiny_layers(network, example))
    for last in (False, True) if cpu_has_bf16() else ():
        value, norm = outcome("bf16", last)
        assert value == pytest.approx(reference[0], rel=0.02)
        assert norm == pytest.approx(reference[1], rel=0.2)


@pytest.mark.parametrize(("name", "loss", "dims"), CASES)
def test_it_learns_a_batch_by_heart(name: str, loss: str, dims: int) -> None:
    network = network_of(config_of(name, dims), classes=2, dims=dims).train()
    train = TrainConfig(learning_rate=1e-2)
    update = Update(
        weights=network,
        optimizer=build_optimizer(network, train),
        schedule=partial(one_cycle, steps=25, peak=1e-2, warmup_fraction=0.1),
        clip_norm=12.0,
    )
    step = TrainStep(
        network=network,
        loss=build_loss(LossConfig(name=loss)),  # type: ignore[arg-type]
        update=update,
        channels_last=True,
        spatial_dims=dims,
        device=CPU,
    )
    image, label = batch_of(name, dims, classes=2)
    losses = [step(image, label, index).item() for index in range(25)]
    assert all(map(math.isfinite, losses))
    assert losses[-1] < 0.75 * losses[0]
