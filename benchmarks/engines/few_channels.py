"""Convolutions of few channels, and a UNet that ends with them, forward and backward: torch's against Hasten's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.harness import interleave

LAYERS = {
    "3 to 3 channels, 2x3x40x56x40": (3, 3, False, (2, 3, 40, 56, 40)),
    "32 to 3 channels, transposed, 2x32x20x28x20": (32, 3, True, (2, 32, 20, 28, 20)),
    "2 to 2 channels, 8x2x32x80x80": (2, 2, False, (8, 2, 32, 80, 80)),
    "32 to 2 channels, transposed, 8x32x16x40x40": (32, 2, True, (8, 32, 16, 40, 40)),
}
"""The last layers of the networks that the ladder trains. (inputs, outputs, transposed, image)."""
NETWORK = "UNet 16-32-64-128, 3 classes, 2x1x40x56x40"
ARMS = ("torch, contiguous", "torch, channels-last", "hasten")


def few_channel_times(rounds: int, precisions: list[str]) -> dict[str, list[float]]:
    """Milliseconds of each layer, precision and arm, interleaved; of the network also without a backward pass."""
    from hasten.runtime.allocator import keep_freed_memory

    keep_freed_memory()  # as in a run
    times: dict[str, list[float]] = {}
    for precision in precisions:
        calls = {name: {arm: _layer_call(*layer, arm, precision) for arm in ARMS} for name, layer in LAYERS.items()}
        for name, backward in ((NETWORK, True), (f"{NETWORK}, forward", False)):
            calls[name] = {arm: _network_call(arm, precision, backward=backward) for arm in ARMS}
        for name, arms in calls.items():
            for arm, values in interleave(arms, rounds, 3).items():
                times[f"{name}/{precision}/{arm}"] = [1e3 * each for each in values]
    return times


def _layer_call(
    inputs: int, outputs: int, transposed: bool, shape: tuple[int, ...], arm: str, precision: str
) -> Callable[[], None]:
    import torch
    from torch import nn

    from hasten.nets.surgery.few_cpu import few_channel_layers

    torch.manual_seed(0)
    more: dict[str, Any] = {"stride": 2, "output_padding": 1} if transposed else {}
    layer = (nn.ConvTranspose3d if transposed else nn.Conv3d)(inputs, outputs, 3, padding=1, bias=False, **more)
    if arm == "hasten":
        assert few_channel_layers(layer) == ("",)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return _call(layer, torch.randn(shape).to(dtype), arm, precision, backward=True)


def _network_call(arm: str, precision: str, *, backward: bool) -> Callable[[], None]:
    import torch

    from benchmarks.tasks import network
    from hasten.nets.surgery.few_cpu import undo_few_channels
    from hasten.nets.surgery.operate import operate

    torch.manual_seed(0)
    unet = network(3)
    assert len(operate(unet).few_channels) == 2
    if arm != "hasten":  # norms are Hasten's in all arms
        for module in unet.modules():
            undo_few_channels(module)
    return _call(unet, torch.randn(2, 1, 40, 56, 40), arm, precision, backward=backward)


def _call(network: Any, image: Any, arm: str, precision: str, *, backward: bool) -> Callable[[], None]:
    import torch

    layout = torch.contiguous_format if arm.endswith("contiguous") else torch.channels_last_3d
    network.to(memory_format=layout)
    image = image.contiguous(memory_format=layout).requires_grad_(image.shape[1] > 1)
    return partial(_pass, network, image, precision, backward=backward)


def _pass(network: Any, image: Any, precision: str, *, backward: bool) -> None:
    import torch

    network.zero_grad()
    image.grad = None
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"), torch.set_grad_enabled(backward):
        output = network(image)
    if backward:
        output.backward(torch.ones_like(output))
