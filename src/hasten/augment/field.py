"""Smooth fields over an image, evaluated one axis after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from hasten.augment.op import Count, Drawn, Operation, Range
from hasten.sample.constant import constant
from hasten.sample.random import uniform_in

_COEFF = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BiasField(Operation):
    """Multiplies by exp of a Legendre polynomial over the image, each axis from -1 to 1; all channels alike.

    `drawn`: coeff (B, n) from U(coeff_range), n = 20 in 3-D and 10 in 2-D for degree 3, in the order of MONAI's
    RandBiasField. As there, 3-D has the terms of total degree up to `degree`, and 2-D the terms P_i(h) P_j(w) with
    j <= i <= degree.
    """

    degree: Count = 3
    coeff_range: Range = (0.0, 0.1)

    def draw(self, key: Tensor, shape: tuple[int, ...]) -> Drawn:
        return {"coeff": uniform_in(key, _COEFF, *self.coeff_range, count=len(_terms(self.degree, len(shape) - 1)))}

    def apply(self, image: Tensor, drawn: Mapping[str, Tensor]) -> Tensor:
        batch, sides = image.shape[0], image.shape[2:]
        count = self.degree + 1
        places = constant(tuple(_terms(self.degree, len(sides))), image.device)
        terms = image.new_zeros(batch, count ** len(sides)).index_copy(1, places, drawn["coeff"])
        basis = [_legendre(side, self.degree, image.device) for side in sides]
        field = separable(terms.view(batch, *[count] * len(sides)), basis)
        return field.exp_()[:, None] * image


def separable(values: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """(B, *S): out[b, x, y, ...] = sum of values[b, i, j, ...] * weights[0][x, i] * weights[1][y, j] * ...

    values: (B, *N); weights: for each axis one (S, N).
    """
    for each in weights:
        # Contracts the first axis and puts the result last, so that the axes end in their order.
        values = torch.tensordot(values, each, dims=([1], [1]))
    return values


def _terms(degree: int, dims: int) -> list[int]:
    """The terms of the polynomial, as flat positions in an array of (degree + 1,) * dims, first axis slowest."""
    indices = []
    for at, powers in enumerate(product(range(degree + 1), repeat=dims)):
        if powers[1] <= powers[0] if dims == 2 else sum(powers) <= degree:
            indices.append(at)
    return indices


def _legendre(side: int, degree: int, device: torch.device) -> Tensor:
    """(side, degree + 1): the Legendre polynomials at places from -1 to 1."""
    x = torch.linspace(-1.0, 1.0, side, device=device)
    rows = [torch.ones_like(x), x]
    for n in range(1, degree):
        rows.append(((2 * n + 1) * x * rows[n] - n * rows[n - 1]) / (n + 1))
    return torch.stack(rows, dim=1)
