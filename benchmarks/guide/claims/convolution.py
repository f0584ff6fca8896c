"""Convolutional networks: algorithms, biases, memory formats, precision, compilation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks.guide.claim import MONAI, NVIDIA, TUNING, Budget, Guidance, Outcome, apart, judged
from benchmarks.guide.nets import blocks, forward_backward, gradients, loss_of, repeated, unet, values


def _cudnn_autotune(budget: Budget) -> Outcome:
    torch.manual_seed(0)
    conv = nn.Conv2d(64, 64, 3).to(budget.device)
    image = values(budget.size(32, 1), 64, budget.size(64, 8), budget.size(64, 8), device=budget.device)
    image.requires_grad_()

    def step(*, benchmark: bool) -> None:
        torch.backends.cudnn.benchmark = benchmark
        forward_backward(conv, image)

    results = []
    for benchmark in (False, True):
        torch.backends.cudnn.benchmark = benchmark
        results.append(gradients(conv, image))
    arms = {
        "benchmark off": repeated(partial(step, benchmark=False), budget.size(20, 1)),
        "benchmark on": repeated(partial(step, benchmark=True), budget.size(20, 1)),
    }
    return judged(budget.compare(arms, base="benchmark off"), difference=apart(*results), tolerance=budget.within(1e-2))


def _bias_free(budget: Budget) -> Outcome:
    with_bias, without = (blocks(budget.size(32, 4), 3, dims=2, bias=bias).to(budget.device) for bias in (True, False))
    missing = without.load_state_dict(with_bias.state_dict(), strict=False)
    assert not missing.missing_keys
    side = budget.size(64, 8, cuda=128)
    image = values(budget.size(8, 2), budget.size(32, 4), side, side, device=budget.device)
    with torch.no_grad():
        difference = apart(with_bias(image), without(image))
    arms = {
        "with bias": partial(forward_backward, with_bias, image),
        "without bias": partial(forward_backward, without, image),
    }
    return judged(budget.compare(arms, base="with bias"), difference=difference, tolerance=budget.within(1e-4))


def _channels_last(budget: Budget) -> Outcome:
    width = budget.size(32, 8)
    side = budget.size(24, 8, cuda=64)
    image = values(budget.size(4, 1), width, side, side, side, device=budget.device)
    plain, last = (blocks(width, 3, dims=3).to(budget.device) for _ in range(2))
    last = last.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
    image_last = image.to(memory_format=torch.channels_last_3d)
    arms = {
        "channels first": partial(forward_backward, plain, image),
        "channels last": partial(forward_backward, last, image_last),
    }
    difference = apart(gradients(plain, image), gradients(last, image_last))
    return judged(budget.compare(arms, base="channels first"), difference=difference, tolerance=budget.within(1e-3))


def _amp(budget: Budget) -> Outcome:
    network = unet((32, 64), dims=3).to(budget.device)
    image = values(budget.size(2, 1), 1, *[budget.size(32, 8, cuda=96)] * 3, device=budget.device)

    def step(*, amp: bool) -> None:
        network.zero_grad(set_to_none=True)
        with torch.autocast(budget.device, torch.bfloat16, enabled=amp):
            loss = loss_of(network, image)
        loss.backward()

    def output(*, amp: bool) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(budget.device, torch.bfloat16, enabled=amp):
            return network(image).float()

    times = budget.size(2, 1)
    arms = {
        "float32": repeated(partial(step, amp=False), times),
        "bfloat16": repeated(partial(step, amp=True), times),
    }
    difference = apart(output(amp=False), output(amp=True))
    return judged(budget.compare(arms, base="float32"), difference=difference, tolerance=0.05)


def _compile_unet(budget: Budget) -> Outcome:
    network = unet((16, 32), dims=3).to(budget.device)
    torch.compiler.reset()
    compiled = torch.compile(network, backend=budget.backend)
    image = values(budget.size(2, 1), 1, *[budget.size(32, 8, cuda=96)] * 3, device=budget.device)

    def step(forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        network.zero_grad(set_to_none=True)
        loss_of(forward, image).backward()

    plain = gradients(network, image)
    step(compiled)
    difference = apart(plain, [weight.grad for weight in network.parameters() if weight.grad is not None])
    times = budget.size(2, 1)
    arms = {
        "not compiled": repeated(partial(step, network), times),
        "compiled": repeated(partial(step, compiled), times),
    }
    return judged(
        budget.compare(arms, base="not compiled"),
        difference=difference,
        tolerance=budget.within(1e-2),
        note="the compilation itself is not counted",
    )


CLAIMS = (
    Guidance(
        name="cudnn-autotune",
        claim="cudnn.benchmark makes a convolution faster (64 filters 3x3, batch 32x64x64x64, forward and backward)",
        source=f"{TUNING}: Enable cuDNN auto-tuner",
        needs="a CUDA device",
        run=_cudnn_autotune,
    ),
    Guidance(
        name="bias-free",
        claim="A convolution right before a batch norm needs no bias, and is faster without",
        source=f"{TUNING}: Disable bias for convolutions directly followed by a batch norm",
        run=_bias_free,
    ),
    Guidance(
        name="channels-last-3d",
        claim="The channels-last memory format makes a 3-D network faster",
        source=f"{NVIDIA}: nnU-Net for PyTorch, changelog (3D channel last convolutions)",
        run=_channels_last,
    ),
    Guidance(
        name="amp",
        claim="Automatic mixed precision makes a 3-D network faster",
        source=f"{TUNING}: Use mixed precision and AMP; {MONAI}: AMP",
        published="up to 3x (Volta and newer); about 1.1x an epoch of the spleen task (A100, read off the figure)",
        run=_amp,
    ),
    Guidance(
        name="compile-unet",
        claim="torch.compile makes a UNet faster",
        source="MONAI tutorials: modules/torch_compile",
        published="300 epochs 354.95 s, compiled 305.65 s: 1.16x",
        run=_compile_unet,
        setup_s=20.0,
    ),
)
