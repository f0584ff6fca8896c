"""Muon for convolution filters: momentum whose direction is made orthogonal, one matrix per filter bank.

After K. Jordan's Muon (2024) with the RMS-matched scale of Liu et al., "Muon is scalable for LLM training" (2025),
which lets it share AdamW's learning rate. A filter bank is treated as the matrix (out, in * k^3).
Biases, norms, activations and the banks next to the image and to the classes, whose matrices are too thin for a
direction to mean much, are AdamW's.

The iterations run on Gram matrices in float32. On a GPU with bf16 matrix units the two products with whole banks take
bf16 and sum in float32. Of a gradient whose singular values span four decades, that direction is as far from the exact
one as the published iteration in bf16 (12 and 13 % of its norm), of a random one a tenth as far (0.25 and 1.9 %).
Iterations on Gram matrices in bf16 diverge, and TF32 is off by 29 %.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

import torch
from torch import Tensor, nn

from hasten.devices import kind_of, multiplies_bf16
from hasten.optim.base import Amp, BaseOptimizer

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_THIN = 8
_BLOCKED_SIDE = 128
_BLOCKS = 4
_SMALL = 128
"""Gram matrices up to this side are padded to one size on a GPU, where their launches take longer than their sums."""


class Muon(BaseOptimizer):
    """Muon on convolution filters, fused AdamW on the rest, in one optimizer with one state.

    params: parameters of a network, of any number of dimensions, with or without names, or groups of them; each group
    is split into Muon's and AdamW's. lr: as for AdamW. transposed: those that are filters of a transposed convolution,
    whose first axis is the input's. exempt: those that are AdamW's and do not decay, whatever their shape (norms over
    several axes).
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[tuple[str, nn.Parameter]] | Iterable[dict[str, Any]],
        *,
        lr: float | Tensor,
        transposed: Iterable[Tensor] = (),
        exempt: Iterable[Tensor] = (),
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
    ) -> None:
        turned, plain = {id(parameter) for parameter in transposed}, {id(parameter) for parameter in exempt}
        items: list[Any] = list(params)
        whole = items if items and isinstance(items[0], dict) else [{"params": items}]
        groups = [each for group in whole for each in _split(group, turned, plain)]
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(groups, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, split as those at the start; none of its filters counts as one of a transposed convolution."""
        groups = [param_group] if "muon" in param_group else _split(param_group, frozenset(), frozenset())
        for each in groups:
            super().add_param_group(each)

    def _update(self, amp: Amp) -> None:
        for group in self.param_groups:
            for parameters, gradients in self._moving(group):
                if group["muon"]:
                    self._muon(parameters, gradients, group, amp)
                else:
                    self._adamw(parameters, parameters, gradients, group, amp)

    def _muon(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any], amp: Amp) -> None:
        moments = self._moments(parameters, "momentum")
        if amp.scale is not None:
            torch._foreach_div_(gradients, amp.scale)
        keep, rate = 1 - group["lr"] * group["weight_decay"], -group["lr"]
        if amp.skip is not None:
            # A momentum is a fixed point of its own running mean; all that follows is then finite, and times 0.
            gradients = [
                torch.where(amp.skip, moment, gradient) for moment, gradient in zip(moments, gradients, strict=True)
            ]
            keep, rate = torch.where(amp.skip, 1.0, keep), torch.where(amp.skip, 0.0, rate)
        torch._foreach_lerp_(moments, gradients, 1 - group["momentum"])
        directions = torch._foreach_lerp(gradients, moments, group["momentum"])  # Nesterov's look ahead
        if group["weight_decay"] != 0:
            torch._foreach_mul_(parameters, keep)
        device = directions[0].device
        in_bf16 = kind_of(device).nvidia and multiplies_bf16(device)
        add = add_orthogonal_bf16 if in_bf16 else add_orthogonal
        add(parameters, directions, rate, swap=group["swap"])


def _split(group: dict[str, Any], turned: Set[int], plain: Set[int]) -> list[dict[str, Any]]:
    """Groups of Muon's filters, of those that are turned, of AdamW's parameters and of those that do not decay."""
    parts: list[dict[str, Any]] = [
        {**group, "params": [], "muon": True, "swap": False},
        {**group, "params": [], "muon": True, "swap": True},
        {**group, "params": [], "muon": False},
        {**group, "params": [], "muon": False, "weight_decay": 0.0},
    ]
    params = group["params"]
    for each in [params] if isinstance(params, Tensor) else params:
        parameter = each[1] if isinstance(each, tuple) else each
        if parameter.ndim <= 1 or id(parameter) in plain:
            number = 3
        elif not is_filter_bank(parameter):
            number = 2
        else:
            number = int(id(parameter) in turned)
        parts[number]["params"].append(parameter)
    return [part for part in parts if part["params"]]


def is_filter_bank(parameter: Tensor) -> bool:
    """Whether Muon takes this parameter: a layer's weight, (out, in, ...) or transposed, not thin in channels."""
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


def add_orthogonal(
    parameters: Sequence[Tensor], directions: Sequence[Tensor], rate: float | Tensor, *, swap: bool
) -> None:
    """Add `rate` times 0.2 sqrt(longer side) times the orthogonal direction to each parameter, in place.

    directions: of the parameters' shapes and memory formats. rate: a number, or () on their device.
    """
    matrices = [_matrix(direction, swap=swap) for direction in directions]
    factors = orthogonal_factors(matrices)
    if isinstance(rate, Tensor):
        torch._foreach_mul_(factors, rate)
        rate = 1.0
    for parameter, matrix, factor in zip(parameters, matrices, factors, strict=True):
        _add_product(parameter, matrix, factor, alpha=rate * 0.2 * max(matrix.shape) ** 0.5, swap=swap)


def add_orthogonal_bf16(
    parameters: Sequence[Tensor], directions: Sequence[Tensor], rate: float | Tensor, *, swap: bool
) -> None:
    """`add_orthogonal` with products of bf16 and few launches: banks of one shape are multiplied together."""
    shapes: dict[tuple[int, int], list[int]] = {}
    matrices = [_matrix(direction, swap=swap) for direction in directions]
    for number, matrix in enumerate(matrices):
        shapes.setdefault((matrix.shape[0], matrix.shape[1]), []).append(number)
    stacks = {shape: torch.stack([matrices[n] for n in numbers]).bfloat16() for shape, numbers in shapes.items()}
    wides = {shape: stack if shape[0] <= shape[1] else stack.mT for shape, stack in stacks.items()}
    factors = _factors_together({shape: _bf16_product(wide, wide.mT) for shape, wide in wides.items()})
    for shape, numbers in shapes.items():
        factor = (factors[shape] * (rate * 0.2 * max(shape) ** 0.5)).bfloat16()
        stack, wide = stacks[shape], shape[0] <= shape[1]
        updates = _bf16_product(factor, stack) if wide else _bf16_product(stack, factor.mT)
        places = [_rows_first(parameters[number], swap=swap) for number in numbers]
        torch._foreach_add_(places, [update.view(places[0].shape) for update in updates])


def _bf16_product(one: Tensor, other: Tensor) -> Tensor:
    """(N, R, C) float32: the product of bf16 matrices (N, R, K) and (N, K, C)."""
    if kind_of(one.device).nvidia:
        return torch.bmm(one, other, out_dtype=torch.float32)
    return one.float() @ other.float()


def _factors_together(grams: dict[tuple[int, int], Tensor]) -> dict[tuple[int, int], Tensor]:
    """The factors of `orthogonal_factors` from the Gram matrices (N, side, side) of each shape, side the shorter one.

    Zeros around a matrix stay apart from it in every iteration, so that small ones run as one batch.
    """
    small = max((min(shape) for shape in grams if min(shape) <= _SMALL), default=0)
    batches: dict[int, list[tuple[int, int]]] = {}
    for shape in grams:
        batches.setdefault(max(min(shape), small), []).append(shape)
    factors = {}
    for side, group in batches.items():
        sizes = [len(grams[shape]) for shape in group]
        padded = grams[group[0]].new_zeros(sum(sizes), side, side)
        for shape, place in zip(group, padded.split(sizes), strict=True):
            place[:, : min(shape), : min(shape)] = grams[shape]
        for shape, factor in zip(group, _factors(padded).split(sizes), strict=True):
            factors[shape] = factor[:, : min(shape), : min(shape)]
    return factors


def _rows_first(filters: Tensor, *, swap: bool) -> Tensor:
    """The filters' memory seen with the rows and columns of `_matrix`, the columns over one or more axes."""
    if _last(filters):
        return _matrix(filters, swap=swap)
    return filters.transpose(0, 1) if swap else filters


def _add_product(parameter: Tensor, matrix: Tensor, factor: Tensor, *, alpha: float, swap: bool) -> None:
    """Add alpha times the product of `factor` and the direction's matrix to the filters."""
    # In the matrix's own orientation, so that no transposed copy is made.
    first, second = (factor, matrix) if factor.shape[0] == matrix.shape[0] else (matrix, factor.mT)
    if swap and not _last(parameter):
        place = _rows_first(parameter, swap=swap)
        place.add_((first @ second).view(place.shape), alpha=alpha)
    else:
        _matrix(parameter, swap=swap).addmm_(first, second, alpha=alpha)


def orthogonal_factors(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Factors (short, short) that multiply each matrix (rows, columns) on its short side, to make it half-orthogonal.

    The product of five quintic Newton-Schulz iterations X <- (a + b G + c G^2) X, G = X X^T, after which singular
    values lie between about 0.7 and 1.2. Every iteration is a polynomial of the first G, so they are multiplied in this
    small space, for all matrices of one short side together: two products with the long side instead of ten.
    """
    wides = [matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT for matrix in matrices]
    sides: dict[int, list[int]] = {}
    for number, wide in enumerate(wides):
        sides.setdefault(wide.shape[0], []).append(number)
    factors = list(matrices)
    for side, numbers in sides.items():
        gram = torch.empty(len(numbers), side, side, dtype=wides[0].dtype, device=wides[0].device)
        for one, number in zip(gram, numbers, strict=True):
            _gram(wides[number], out=one)
        for number, factor in zip(numbers, _factors(gram), strict=True):
            factors[number] = factor
    return factors


def _factors(gram: Tensor) -> Tensor:
    """(N, side, side): from the Gram matrices, which are overwritten."""
    norm = gram.diagonal(dim1=1, dim2=2).sum(1).sqrt_()[:, None, None] + 1e-7
    return _polynomial(gram.div_(norm * norm)).div_(norm)


def _gram(wide: Tensor, *, out: Tensor) -> None:
    """out = wide @ wide.T. On a CPU, where the product takes long, only a little more than its lower triangle."""
    side = wide.shape[0]
    if side < _BLOCKED_SIDE or wide.device.type != "cpu":
        torch.mm(wide, wide.mT, out=out)
        return
    height = -(-side // _BLOCKS)
    for start in range(0, side, height):
        stop = min(start + height, side)
        torch.mm(wide[start:stop], wide[:stop].mT, out=out[start:stop, :stop])
        out[:start, start:stop] = out[start:stop, :start].mT


def _polynomial(gram: Tensor) -> Tensor:
    """(N, side, side): product of the iterations' factors of X, from G = X X^T with a norm of X of at most 1."""
    a, b, c = _COEFFICIENTS
    diagonal = a * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    product: Tensor | None = None
    for remaining in range(_ITERATIONS, 0, -1):
        factor = torch.baddbmm(diagonal + b * gram, gram, gram, alpha=c)
        product = factor if product is None else factor @ product
        if remaining > 1:
            gram = factor @ gram @ factor
    assert product is not None
    return product
