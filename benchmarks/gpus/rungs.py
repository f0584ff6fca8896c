"""The rungs of the step ladder: what each adds, and the call that takes one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from monai.losses import DiceCELoss
from torch import Tensor, nn

from benchmarks.gpus.nets import Net, batch_of, build
from hasten.config.schema import LossConfig, TrainConfig
from hasten.nets.build import build_loss
from hasten.nets.surgery import fused_norms, operate
from hasten.nets.surgery.gpu_forms import gpu_forms
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer
from hasten.runtime.precision import autocast, memory_format, scaler_for, tensor_cores
from hasten.training.capture import WARM_UP, CapturedStep
from hasten.training.step import TrainStep
from hasten.training.update import Update

RATE = 1e-5


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """What a step has that plain eager float32 has not."""

    name: str
    precision: str = "fp32"
    channels_last: bool = False
    fused: bool = False
    """Norms and activations as one kernel, in the memory format that they are given."""
    own: bool = False
    """Hasten's step: its loss, fused optimizer, clipping and weight average, and no value read."""
    captured: bool = False


RUNGS = (
    Rung(name="eager bf16", precision="bf16"),
    Rung(name="hasten", precision="bf16", channels_last=True, fused=True, own=True),
    Rung(name="hasten captured", precision="bf16", channels_last=True, fused=True, own=True, captured=True),
    Rung(name="eager fp16", precision="fp16"),
    Rung(name="hasten fp16", precision="fp16", channels_last=True, fused=True, own=True),
    Rung(name="eager tf32", precision="tf32"),
    Rung(name="eager fp32"),
    Rung(name="bf16 channels-last", precision="bf16", channels_last=True),
    Rung(name="bf16 channels-last fused", precision="bf16", channels_last=True, fused=True),
)
"""In the order of their worth, as time may run out."""


@dataclass(kw_only=True, slots=True)
class Ready:
    """A rung that can be timed."""

    step: Callable[[], object]
    note: str = ""
    """What it says of itself."""
    close: Callable[[], None] = lambda: None


def make_rung(rung: Rung, net: Net, size: int, device: torch.device) -> Ready:
    """A step of a batch of `size` patches. Raises RuntimeError for a rung that this device has not."""
    if rung.captured and device.type != "cuda":
        raise RuntimeError("there is no CUDA device to capture a graph on")
    network, message = _network(rung, net, device)
    image, label = batch_of(net, size, device)
    if not rung.own:
        return Ready(step=_plain(rung, network, image, label), note=message)
    step = _own(rung, network, device)
    if rung.captured:
        return _captured(step, image, label, message)
    return Ready(step=lambda: step(image, label, 0), note=message)


def make_step(rung: Rung, net: Net, size: int, device: torch.device) -> tuple[TrainStep, tuple[Tensor, Tensor]]:
    """Hasten's step of a rung that is not captured, and a batch for it."""
    network, _ = _network(rung, net, device)
    return _own(rung, network, device), batch_of(net, size, device)


def _network(rung: Rung, net: Net, device: torch.device) -> tuple[nn.Module, str]:
    """In the rung's memory format, operated on where it is fused; and what was done."""
    network = build(net, device).to(memory_format=memory_format(3, rung.channels_last))  # type: ignore[call-overload]
    if not rung.fused:
        return network, ""
    probe = torch.randn(2, 1, net.side, net.side, net.side, device=device)
    done = operate(network, probe)
    fused_norms(network, True)
    return network, str(done)


def _plain(rung: Rung, network: nn.Module, image: Tensor, label: Tensor) -> Callable[[], None]:
    """The loop of the tutorials: MONAI's loss, torch's optimizer as it is made by default."""
    device = image.device
    loss_function = DiceCELoss(include_background=False, to_onehot_y=True, softmax=True, batch=True)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9, nesterov=True)
    scaler = scaler_for(device, rung.precision)
    image = image.contiguous(memory_format=memory_format(3, rung.channels_last))

    def once() -> None:
        optimizer.zero_grad()
        with tensor_cores(device, rung.precision):
            with autocast(device, rung.precision), gpu_forms(rung.fused and rung.channels_last):
                loss = loss_function(network(image), label)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return once


def _own(rung: Rung, network: nn.Module, device: torch.device) -> TrainStep:
    optimizer = build_optimizer(network, TrainConfig(optimizer="sgd", learning_rate=RATE))
    scaler = scaler_for(device, rung.precision)
    update = Update(weights=network, optimizer=optimizer, average=average_of(network), clip_norm=12.0, scaler=scaler)
    return TrainStep(
        network=network, loss=build_loss(LossConfig()), update=update, precision=rung.precision,
        channels_last=rung.channels_last, device=device, fused_kernels=rung.fused,
    )  # fmt: skip


def _captured(step: TrainStep, image: Tensor, label: Tensor, message: str) -> Ready:
    """The step as one CUDA graph, captured and checked as a run's is."""
    return ready_run(CapturedStep(step=step, load=lambda index: None, batch=lambda: (image, label)), message)


def ready_run(captured: CapturedStep, message: str = "") -> Ready:
    """After its first steps. Raises RuntimeError for a step that is not captured."""
    for index in range(WARM_UP + 2):
        captured(index)
    if not captured.on:
        raise RuntimeError(captured.reason)
    numbers = iter(range(WARM_UP + 2, 10**9))
    return Ready(step=lambda: captured(next(numbers)), note=f"{message}; {captured.reason}", close=captured.close)
