"""The bias field against MONAI's, and fields evaluated axis by axis."""

from __future__ import annotations

import pytest
import torch
from monai.transforms import RandBiasField

from hasten.augment.field import BiasField, separable
from hasten.sample.random import sample_key

SHAPES = [(1, 9, 12), (3, 1, 7), (1, 8, 11, 6), (2, 5, 12, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("degree", [1, 3, 4])
def test_it_is_monais_field(shape: tuple[int, ...], degree: int) -> None:
    op = BiasField(prob=1, degree=degree, coeff_range=(-0.4, 0.5))
    image = torch.rand(3, *shape, generator=torch.Generator().manual_seed(degree)) - 0.3
    drawn = op.draw(sample_key(torch.tensor(7), torch.arange(3)), shape)
    result = op.apply(image, drawn)
    peer = RandBiasField(degree=degree, prob=1)
    peer._do_transform = True
    for row in range(3):
        peer._coeff = drawn["coeff"][row].tolist()
        wanted = torch.as_tensor(peer(image[row].clone(), randomize=False))
        torch.testing.assert_close(result[row], wanted, rtol=1e-4, atol=1e-6)


def test_a_field_is_the_sum_over_all_axes() -> None:
    draw = torch.Generator().manual_seed(1)
    values = torch.rand(2, 3, 4, 5, generator=draw)
    weights = [torch.rand(side, count, generator=draw) for side, count in ((6, 3), (7, 4), (8, 5))]
    torch.testing.assert_close(separable(values, weights), torch.einsum("bijk,xi,yj,zk->bxyz", values, *weights))
    torch.testing.assert_close(
        separable(values[0], weights[1:]), torch.einsum("bij,xi,yj->bxy", values[0], *weights[1:])
    )
