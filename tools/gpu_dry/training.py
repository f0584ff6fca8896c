"""Networks, losses, optimizers and whole steps on the fake device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any, get_args
from unittest import mock

import torch
from torch import Tensor, nn

from hasten.config.schema import LossConfig, NetworkConfig, OptimizerName, TrainConfig
from hasten.nets.build import build_loss, build_network
from hasten.nets.surgery.fuse import fused_norms
from hasten.nets.surgery.operate import operate
from hasten.optim.average import average_of
from hasten.optim.build import build_optimizer
from hasten.runtime.precision import DTYPES, autocast, memory_format, scaler_for
from hasten.training.capture import captured_run
from hasten.training.step import TrainStep
from hasten.training.update import Update
from tests.contracts.test_networks import ACTS, FAST, LOSSES, NORMS, config_of
from tools.gpu_dry.augmentation import preset_segment
from tools.gpu_dry.compile_kernels import recorded
from tools.gpu_dry.fake_device import CUDA, NoHostCopies, expect, fake_cuda, keep_format, moved, on_cuda, triton_works
from tools.gpu_dry.table import Check

PRECISIONS = ("fp32", "bf16", "fp16")
CLASSES, SIDE = 3, 16
REGIONS = ((1, 2), (2,))


def training_checks() -> Iterator[Check]:
    for name, dims, norm, act in product(FAST, (2, 3), NORMS, ACTS):
        config = config_of(name, dims, norm=norm, act=act)
        for precision, last in product(PRECISIONS, (False, True)):
            title = f"{dims}-D {name}, {norm}, {act}, {precision}{_last(last)}"
            yield Check("networks", title, partial(_network, config, dims, precision, last))
    for name, dims, precision, last, regions in product(LOSSES, (2, 3), PRECISIONS, (False, True), ((), REGIONS)):
        title = f"{dims}-D {name}, {precision}{_last(last)}{' of regions' if regions else ''}"
        yield Check("losses", title, partial(_loss, name, dims, precision, last, regions))
    for name, last, scaled in product(get_args(OptimizerName), (False, True), (False, True)):
        title = f"{name}{_last(last)}{', scaled' if scaled else ''}"
        yield Check("optimizers", title, partial(_optimizer, name, last, scaled))
    for name, dims, precision, last, surgery in product(FAST, (2, 3), PRECISIONS, (False, True), (False, True)):
        title = f"{dims}-D {name}, {precision}{_last(last)}{', surgery' if surgery else ''}"
        yield Check("steps", title, partial(_step, config_of(name, dims), dims, precision, last, surgery))
    for name, dims, norm, dropout in product(FAST, (2, 3), NORMS, (0.0, 0.2)):
        config = config_of(name, dims, norm=norm, dropout=dropout)
        yield Check("kernels", f"{dims}-D {name}, {norm}, dropout {dropout}", partial(_kernels, config, dims))
    for chain in ("nnunet", "spleen"):
        yield Check("captured steps", f"{chain}, each with the next batch beside it", partial(_captured, chain))
    deep = config_of("dynunet", 3, deep_supervision=1)
    yield Check("steps", "3-D dynunet, deep supervision, bf16", partial(_step, deep, 3, "bf16", True, False))


def _last(last: bool) -> str:
    return ", channels last" if last else ""


def sides_of(dims: int) -> tuple[int, ...]:
    return (SIDE,) * dims


def made(config: NetworkConfig, dims: int, last: bool) -> nn.Module:
    """On the host: building one reads values."""
    network = build_network(config, num_channels=1, num_classes=CLASSES, spatial_dims=dims)
    return network.to(memory_format=memory_format(dims, last))  # type: ignore[call-overload]


def _batch(dims: int) -> tuple[Tensor, Tensor]:
    sides = sides_of(dims)
    return torch.empty(2, 1, *sides, device=CUDA), torch.empty(2, 1, *sides, dtype=torch.uint8, device=CUDA)


def _network(config: NetworkConfig, dims: int, precision: str, last: bool) -> None:
    host = made(config, dims, last)
    with fake_cuda():
        network, (image, _) = moved(host), _batch(dims)
        layout = memory_format(dims, last)
        with NoHostCopies(), autocast(CUDA, precision):
            scores = network(image.contiguous(memory_format=layout))
        expect("scores", (scores.dtype, scores.device), (DTYPES.get(precision, torch.float32), CUDA))
        expect("shape", tuple(scores.shape), (2, CLASSES, *sides_of(dims)))


def _kernels(config: NetworkConfig, dims: int) -> None:
    """In channels-last, every norm of a network is one kernel with its dropout and its activation."""
    host, layout = made(config, dims, True), memory_format(dims, True)
    operate(host, torch.zeros(2, 1, *sides_of(dims)))
    norms = fused_norms(host, True)
    with fake_cuda(), triton_works(), recorded() as launches:
        network, (image, _) = moved(host), _batch(dims)
        keep_format(network, layout)
        with NoHostCopies(), autocast(CUDA, "bf16"):
            network(image.contiguous(memory_format=layout)).sum().backward()
    for kernel in ("apply_kernel", "gradient_kernel"):
        expect(kernel, sum(each.kernel.__name__ == kernel for each in launches), norms)


def _loss(name: str, dims: int, precision: str, last: bool, regions: Any) -> None:
    loss = build_loss(LossConfig(name=name), regions=regions)  # type: ignore[arg-type]
    with fake_cuda():
        _, label = _batch(dims)
        loss.to(CUDA)  # type: ignore[attr-defined]
        channels = len(regions) or CLASSES
        dtype = DTYPES.get(precision, torch.float32)
        plain = torch.empty(2, channels, *sides_of(dims), dtype=dtype, device=CUDA)
        scores = plain.contiguous(memory_format=memory_format(dims, last)).requires_grad_()
        with NoHostCopies():
            value = loss(scores, label)
            value.backward()
        expect("loss", (value.dtype, value.device, value.shape), (torch.float32, CUDA, ()))
        assert scores.grad is not None
        expect("gradient", (scores.grad.dtype, scores.grad.stride()), (dtype, scores.stride()))


def _optimizer(name: OptimizerName, last: bool, scaled: bool) -> None:
    """Three updates on made-up gradients, clipped and averaged, as a step that is captured takes them."""
    config = TrainConfig(optimizer=name, learning_rate=1e-3)
    host = made(config_of("unet"), 3, last)
    average = average_of(host)
    with fake_cuda():
        network, average = moved(host), moved(average)
        update = Update(
            weights=network, optimizer=build_optimizer(network, config),  # type: ignore[arg-type]
            schedule=lambda step: 1e-3, average=average, clip_norm=12.0,
            scaler=scaler_for(CUDA, "fp16") if scaled else None, share=torch.zeros((), device=CUDA),
        )  # fmt: skip
        if update.scaler is not None:
            update.scaler.scale(torch.ones((), device=CUDA))  # makes the scale
        before = [_form(weight) for weight in network.parameters()]
        for number in range(3):
            for weight in network.parameters():
                weight.grad = torch.empty_like(weight)
            # States are made in the first update, which may be anywhere.
            with NoHostCopies() if number else nullcontext():
                update.apply(number)
        for module in (network, average):
            expect("weights", [_form(weight) for weight in module.parameters()], before)
        _check_states(update.optimizer)


def _check_states(optimizer: torch.optim.Optimizer) -> None:
    inner = getattr(optimizer, "optimizer", optimizer)
    for weight, state in inner.state.items():
        for key, value in state.items():
            if isinstance(value, Tensor):
                expect(f"device of {key}", value.device, CUDA)
                if value.shape == weight.shape:
                    expect(key, _form(value), _form(weight))


def _form(value: Tensor) -> tuple[Any, ...]:
    """Dtype, device, and strides of the axes that have some."""
    strides = [stride for stride, side in zip(value.stride(), value.shape, strict=True) if side > 1]
    return value.dtype, value.device, tuple(value.shape), strides


def _step(config: NetworkConfig, dims: int, precision: str, last: bool, surgery: bool) -> None:
    """Two whole steps: forward, loss, backward, clip, update, average."""
    host = made(config, dims, last)
    if surgery:
        operate(host)
    average = average_of(host)
    with fake_cuda():
        step, (image, label) = _step_of(host, average, dims, precision, last), _batch(dims)
        step(image, label, 0)
        with NoHostCopies():
            result = step(image, label, 1)
        expect("loss", (result.dtype, result.device, result.shape), (torch.float32, CUDA, ()))
        expect("weights", {weight.dtype for weight in step.network.parameters()}, {torch.float32})


def _step_of(host: nn.Module, average: nn.Module, dims: int, precision: str, last: bool) -> TrainStep:
    network = moved(host)
    update = Update(
        weights=network, optimizer=build_optimizer(network, TrainConfig(learning_rate=1e-3)),  # type: ignore[arg-type]
        average=moved(average), clip_norm=12.0, scaler=scaler_for(CUDA, precision),
    )  # fmt: skip
    return TrainStep(
        network=network, loss=build_loss(LossConfig()), update=update, precision=precision, channels_last=last,
        spatial_dims=dims, device=CUDA,
    )  # fmt: skip


class _Streams:
    """Stands in for `SideStream`, as no stream can be made here."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def run(self, body: Callable[[], Tensor]) -> Tensor:
        return body()

    @contextmanager
    def beside(self, body: Callable[[], None]) -> Iterator[None]:
        body()
        yield


def _captured(chain: str) -> None:
    """Two steps in the form that is captured."""
    cases, host = preset_segment(chain, 3, SIDE, "float16", batch_size=2), made(config_of("unet"), 3, True)
    average = average_of(host)
    with fake_cuda(), mock.patch("hasten.training.capture.SideStream", _Streams):
        captured = captured_run(_step_of(host, average, 3, "bf16", True), on_cuda(cases))
        captured(0)
        with NoHostCopies():
            expect("loss", captured(1).device, CUDA)
