"""Optimizers as their papers and MONAI's or timm's loops write them: one parameter after another, in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def network(layout: torch.memory_format = torch.contiguous_format, seed: int = 0) -> nn.Module:
    """Banks of several shapes, also transposed and 1x1x1 ones, with vectors between them."""
    torch.manual_seed(seed)
    made = nn.Sequential(
        nn.Conv3d(1, 8, 3), nn.InstanceNorm3d(8, affine=True), nn.PReLU(), nn.Conv3d(8, 16, 3), nn.BatchNorm3d(16),
        nn.ConvTranspose3d(16, 8, 2, bias=False), nn.Conv3d(8, 24, 1), nn.Conv3d(24, 2, 1),
    )  # fmt: skip
    return made.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def set_gradients(net: nn.Module, seed: int, *, missing: bool = False, scale: float = 1.0) -> None:
    """The same for every memory format; with `missing`, every fifth parameter has none."""
    generator = torch.Generator().manual_seed(seed)
    for number, parameter in enumerate(net.parameters()):
        value = torch.randn(parameter.shape, generator=generator) * 0.1 * scale
        absent = missing and (number + seed) % 5 == 0
        parameter.grad = None if absent else torch.empty_like(parameter).copy_(value)


def spoil_gradients(net: nn.Module) -> None:
    for number, parameter in enumerate(net.parameters()):
        if parameter.grad is not None:
            parameter.grad[(0,) * parameter.ndim] = float("nan") if number % 2 else float("inf")


def norm(value: Tensor) -> float:
    return float(value.detach().double().norm())


class Textbook:
    """Weights in float64 beside a network; `update` is the method under test, of one parameter."""

    def __init__(self, net: nn.Module, *, lr: float, decay: float, vectors_decay: bool = True) -> None:
        self.net, self.lr = net, lr
        self.weights = [parameter.detach().double().clone() for parameter in net.parameters()]
        self.decays = [decay if vectors_decay or parameter.ndim > 1 else 0.0 for parameter in net.parameters()]
        self.states: list[dict[str, Tensor]] = [{} for _ in self.weights]
        self.counts = [0 for _ in self.weights]

    def prepare(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        return gradients

    def step(self) -> None:
        gradients = [each.grad.double() if each.grad is not None else None for each in self.net.parameters()]
        for number, gradient in enumerate(self.prepare(gradients)):
            if gradient is not None:
                self.counts[number] += 1
                self.update(number, gradient)

    def update(self, number: int, gradient: Tensor) -> None:
        raise NotImplementedError


def assert_follows(
    optimizer: torch.optim.Optimizer, book: Textbook, net: nn.Module, scales: list[float], *, rtol: float, atol: float
) -> None:
    """After a step for each of `scales` of the gradients, some of them missing, the weights are the textbook's."""
    for step, scale in enumerate(scales):
        set_gradients(net, step, missing=True, scale=scale)
        book.step()
        optimizer.step()
    for result, wanted in zip(net.parameters(), book.weights, strict=True):
        assert torch.allclose(result.double(), wanted, rtol=rtol, atol=atol)


class TextbookNovograd(Textbook):
    betas, eps, averaging, amsgrad = (0.9, 0.98), 1e-8, False, False

    def update(self, number: int, gradient: Tensor) -> None:
        state, weight = self.states[number], self.weights[number]
        square = gradient.square().sum()
        if "square" in state:
            square = self.betas[1] * state["square"] + (1 - self.betas[1]) * square
        state["square"] = square
        state["largest"] = torch.maximum(state.get("largest", square), square)
        divisor = (state["largest"] if self.amsgrad else square).sqrt() + self.eps
        change = gradient / divisor + self.decays[number] * weight
        change = change * (1 - self.betas[0]) if self.averaging else change
        state["moment"] = self.betas[0] * state.get("moment", torch.zeros_like(weight)) + change
        weight -= self.lr * state["moment"]


class TextbookLamb(Textbook):
    betas, eps, nvlamb = (0.9, 0.999), 1e-6, False

    def prepare(self, gradients: list[Tensor | None]) -> list[Tensor | None]:
        total = sum(norm(each) ** 2 for each in gradients if each is not None) ** 0.5
        return [None if each is None else each / (total if self.nvlamb else 1.0) for each in gradients]

    def update(self, number: int, gradient: Tensor) -> None:
        state, weight, count = self.states[number], self.weights[number], self.counts[number]
        zero = torch.zeros_like(weight)
        state["m"] = self.betas[0] * state.get("m", zero) + (1 - self.betas[0]) * gradient
        state["v"] = self.betas[1] * state.get("v", zero) + (1 - self.betas[1]) * gradient.square()
        mean, square = state["m"] / (1 - self.betas[0] ** count), state["v"] / (1 - self.betas[1] ** count)
        change = mean / (square.sqrt() + self.eps) + self.decays[number] * weight
        ratio = 1.0
        if (self.decays[number] != 0 or self.nvlamb) and norm(weight) > 0 and norm(change) > 0:
            ratio = norm(weight) / norm(change)
        weight -= self.lr * ratio * change


class TextbookLars(Textbook):
    momentum, trust, eps = 0.9, 0.001, 1e-8

    def update(self, number: int, gradient: Tensor) -> None:
        state, weight, decay = self.states[number], self.weights[number], self.decays[number]
        if decay != 0:
            ratio = 1.0
            if norm(weight) > 0 and norm(gradient) > 0:
                ratio = self.trust * norm(weight) / (norm(gradient) + decay * norm(weight) + self.eps)
            gradient = ratio * (gradient + decay * weight)
        state["moment"] = self.momentum * state.get("moment", torch.zeros_like(weight)) + gradient
        weight -= self.lr * state["moment"]
