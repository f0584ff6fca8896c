"""Muon for convolution filters: momentum whose direction is made orthogonal, one matrix per filter bank.

After K. Jordan's Muon (2024) with the RMS-matched scale of Liu et al., "Muon is scalable for LLM training" (2025),
which lets it share AdamW's learning rate. A filter bank is taken as the matrix (out, in * k^3).
Biases, norms, activations and the banks next to the image and to the classes, whose matrices are too thin for a
direction to mean much, are AdamW's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_THIN = 8


class Muon(torch.optim.Optimizer):
    """Muon on convolution filters, fused AdamW on the rest, in one optimizer with one state.

    params: parameters of a network, of any number of dimensions. lr: as for AdamW. transposed: those that are
    filters of a transposed convolution, whose first axis is the input's.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        transposed: Iterable[Tensor] = (),
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
    ) -> None:
        listed = list(params)
        banks = [parameter for parameter in listed if is_filter_bank(parameter)]
        others = [parameter for parameter in listed if not is_filter_bank(parameter)]
        turned = {id(parameter) for parameter in transposed}
        straight = [parameter for parameter in banks if id(parameter) not in turned]
        swapped = [parameter for parameter in banks if id(parameter) in turned]
        groups = [
            {"params": straight, "muon": True, "swap": False, "weight_decay": weight_decay},
            {"params": swapped, "muon": True, "swap": True, "weight_decay": weight_decay},
            {"params": [item for item in others if item.ndim > 1], "muon": False, "weight_decay": weight_decay},
            {"params": [item for item in others if item.ndim <= 1], "muon": False, "weight_decay": 0.0},
        ]
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps}
        super().__init__([group for group in groups if group["params"]], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient. No closure is taken."""
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["muon"]:
                self._muon(parameters, group)
            else:
                self._adamw(parameters, group)

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        moments, gradients = [], []
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["momentum"] = torch.zeros_like(parameter)
            moments.append(state["momentum"])
            assert parameter.grad is not None
            gradients.append(parameter.grad)
        torch._foreach_lerp_(moments, gradients, 1 - group["momentum"])
        directions = list(torch._foreach_lerp(gradients, moments, group["momentum"]))  # Nesterov's look ahead
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        matrices = [_matrix(direction, swap=group["swap"]) for direction in directions]
        for parameter, direction, update in zip(parameters, directions, orthogonal(matrices), strict=True):
            scale = 0.2 * max(update.shape) ** 0.5
            parameter.add_(_filters(update, direction, swap=group["swap"]), alpha=-group["lr"] * scale)

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        if not parameters:
            return
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [self.state[parameter]["exp_avg"] for parameter in parameters],
            [self.state[parameter]["exp_avg_sq"] for parameter in parameters],
            [],
            [self.state[parameter]["step"] for parameter in parameters],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def is_filter_bank(parameter: Tensor) -> bool:
    """Whether Muon takes this parameter: a convolution's or linear layer's weight, not thin in channels."""
    return parameter.ndim >= 2 and parameter.shape[0] >= _THIN and parameter.shape[1] >= _THIN


def _last(filters: Tensor) -> bool:
    """Whether filters lie in memory with their second axis last."""
    return filters.ndim > 2 and filters.movedim(1, -1).is_contiguous()


def _matrix(filters: Tensor, *, swap: bool) -> Tensor:
    """Filters as a matrix (out, in * k^3), a view of them where their memory format allows it.

    The order of the columns follows the memory format; an orthogonal direction does not depend on it.
    """
    if not _last(filters):
        return (filters.transpose(0, 1) if swap else filters).flatten(1)
    moved = filters.movedim(1, -1)
    return moved.flatten(0, -2).mT if swap else moved.flatten(1)


def _filters(matrix: Tensor, like: Tensor, *, swap: bool) -> Tensor:
    """The inverse of `_matrix`: in the shape of `like`."""
    if not _last(like):
        turned = like.transpose(0, 1) if swap else like
        found = matrix.reshape(turned.shape)
        return found.transpose(0, 1) if swap else found
    moved = like.movedim(1, -1)
    return (matrix.mT if swap else matrix).reshape(moved.shape).movedim(-1, 1)


def orthogonal(matrices: Sequence[Tensor], *, iterations: int = 5) -> list[Tensor]:
    """The nearest half-orthogonal matrices, roughly: singular values end between about 0.7 and 1.2.

    matrices: each (rows, columns) float32. Five quintic Newton-Schulz iterations X <- (a + b G + c G^2) X, G = X X^T.
    Every factor is a polynomial of the first G, so they are multiplied up in the small (short side) space, for all
    matrices of one short side together, and applied to X once: two products with the long side instead of ten.
    """
    wides = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT for matrix in matrices]
    sides: dict[int, list[int]] = {}
    for number, wide in enumerate(wides):
        sides.setdefault(wide.shape[0], []).append(number)
    found = list(matrices)
    for numbers in sides.values():
        gram = torch.stack([wides[number] @ wides[number].mT for number in numbers])
        norm = gram.diagonal(dim1=1, dim2=2).sum(1).sqrt_()[:, None, None] + 1e-7
        products = _polynomial(gram.div_(norm * norm), iterations).div_(norm)
        for number, product in zip(numbers, products, strict=True):
            # In the matrix's own orientation, so that no transposed copy is made of the result.
            tall = wides[number] is not matrices[number]
            found[number] = matrices[number] @ product.mT if tall else product @ matrices[number]
    return found


def _polynomial(gram: Tensor, iterations: int) -> Tensor:
    """(N, side, side): what the iterations multiply X by, from G = X X^T with a norm of X of at most 1."""
    a, b, c = _COEFFICIENTS
    diagonal = a * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    product: Tensor | None = None
    for left in range(iterations, 0, -1):
        factor = torch.baddbmm(diagonal + b * gram, gram, gram, alpha=c)
        product = factor if product is None else factor @ product
        if left > 1:
            gram = factor @ gram @ factor
    assert product is not None
    return product
