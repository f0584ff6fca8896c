"""Muon against a textbook loop: one matrix at a time, Newton-Schulz as published."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.optim.groups import param_groups
from hasten.optim.muon import Muon, add_orthogonal, add_orthogonal_bf16, is_filter_bank, orthogonal_factors


def published(matrix: Tensor) -> Tensor:
    """K. Jordan's zeropower_via_newtonschulz5, in float64."""
    result = matrix.double()
    tall = result.shape[0] > result.shape[1]
    result = result.T if tall else result
    result = result / (result.norm() + 1e-7)
    for _ in range(5):
        gram = result @ result.T
        result = 3.4445 * result + (-4.7750 * gram + 2.0315 * gram @ gram) @ result
    return result.T if tall else result


def orthogonal(matrices: list[Tensor]) -> list[Tensor]:
    """The directions that Muon steps along, of gradients that are matrices."""
    return [
        factor @ matrix if factor.shape[0] == matrix.shape[0] else matrix @ factor.mT
        for matrix, factor in zip(matrices, orthogonal_factors(matrices), strict=True)
    ]


@given(rows=st.integers(8, 40), columns=st.integers(8, 90), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_orthogonal_is_the_published_iteration(rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, columns), (rows, columns), (columns, rows), (rows, 12), (130, columns)]
    matrices = [torch.randn(shape, generator=generator) for shape in shapes]
    for one, expected in zip(orthogonal(matrices), matrices, strict=True):
        assert (one.double() - published(expected)).abs().max() < 2e-3


def test_singular_values_come_close_to_one() -> None:
    matrices = torch.randn(3, 32, 200, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(torch.stack(orthogonal(list(matrices))))
    assert values.min() > 0.5
    assert values.max() < 1.3


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv3d(1, 8, 3), nn.InstanceNorm3d(8, affine=True), nn.PReLU(), nn.Conv3d(8, 16, 3), nn.Conv3d(16, 2, 1)
    )


def _gradients(network: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_updates_are_those_of_a_textbook_loop(layout: torch.memory_format) -> None:
    network, reference = _network(), _network()
    network.to(memory_format=layout)
    optimizer = Muon(network.parameters(), lr=0.02, weight_decay=0.1)
    moments = {name: torch.zeros_like(value) for name, value in reference.named_parameters()}
    rest = [value for value in reference.parameters() if not is_filter_bank(value)]
    adam = torch.optim.AdamW(
        [
            {"params": [value for value in rest if value.ndim > 1], "weight_decay": 0.1},
            {"params": [value for value in rest if value.ndim <= 1], "weight_decay": 0.0},
        ],
        lr=0.02,
        betas=(0.9, 0.99),
    )
    for step in range(4):
        _gradients(network, step)
        _gradients(reference, step)
        optimizer.step()
        with torch.no_grad():
            for name, value in reference.named_parameters():
                if is_filter_bank(value):
                    assert value.grad is not None
                    moments[name].mul_(0.95).add_(value.grad, alpha=0.05)
                    direction = 0.05 * value.grad + 0.95 * moments[name]
                    matrix = direction.reshape(value.shape[0], -1)
                    update = published(matrix).float() * 0.2 * max(matrix.shape) ** 0.5
                    value.mul_(1 - 0.02 * 0.1).sub_(0.02 * update.reshape(value.shape))
        adam.step()
    for actual, expected in zip(network.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(actual, expected, atol=2e-4)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_directions_in_bf16_are_nearly_those_in_float32(swap: bool, last: bool) -> None:
    shapes = [(16, 8, 3, 3, 3), (16, 8, 3, 3, 3), (8, 16, 3, 3, 3), (32, 8, 1, 1, 1), (8, 32, 1, 1, 1)]
    shapes += [(160, 24, 3, 3, 3), (160, 144, 1, 1, 1), (9, 200, 1, 1, 1)]
    generator = torch.Generator().manual_seed(0)

    def laid(filters: Tensor) -> Tensor:
        return filters.contiguous(memory_format=torch.channels_last_3d if last else torch.contiguous_format)

    directions = [laid(torch.randn(shape, generator=generator) * 1e-6) for shape in shapes]
    wanted, result = ([laid(torch.ones(shape)) for shape in shapes] for _ in range(2))
    add_orthogonal(wanted, directions, -0.5, swap=swap)
    add_orthogonal_bf16(result, directions, torch.tensor(-0.5), swap=swap)
    for one, other in zip(result, wanted, strict=True):
        assert one.stride() == other.stride()
        assert (one - other).norm() <= 0.01 * (other - 1).norm()


def test_directions_in_bf16_of_a_gradient_of_low_rank_stay_bounded() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(side, 64, generator=generator))[0] for side in (64, 1728))
    gradient = left @ torch.diag(10.0 ** torch.linspace(0, -4, 64)) @ right.mT
    result = torch.zeros(64, 1728)
    add_orthogonal_bf16([result], [gradient], 5 / 1728**0.5, swap=False)
    assert torch.linalg.svdvals(result).max() < 1.3


def test_who_is_whose() -> None:
    names = {name for name, value in _network().named_parameters() if is_filter_bank(value)}
    assert names == {"3.weight"}


def test_a_transposed_convolution_is_taken_by_its_outputs() -> None:
    torch.manual_seed(0)
    up = nn.ConvTranspose3d(16, 8, 2, bias=False)
    plain = nn.Conv3d(16, 8, 2, bias=False)
    with torch.no_grad():
        plain.weight.copy_(up.weight.transpose(0, 1))
    gradient = torch.randn(plain.weight.shape)
    plain.weight.grad, up.weight.grad = gradient, gradient.transpose(0, 1).contiguous()
    Muon(up.parameters(), lr=0.1, transposed=[up.weight]).step()
    Muon(plain.parameters(), lr=0.1).step()
    assert torch.allclose(up.weight.transpose(0, 1), plain.weight, atol=1e-6)


def test_exempt_filters_are_adamws_and_do_not_decay() -> None:
    weight = nn.Parameter(torch.ones(8, 8))
    weight.grad = torch.ones(8, 8)
    Muon([weight], lr=0.1, weight_decay=0.5, exempt=[weight]).step()
    assert torch.allclose(weight, torch.full((8, 8), 0.9))


def test_transposed_banks_of_either_memory_format_are_added_in_place() -> None:
    torch.manual_seed(0)
    results = []
    for layout in (torch.contiguous_format, torch.channels_last_3d):
        up = nn.ConvTranspose3d(24, 8, 2, bias=False)
        with torch.no_grad():
            up.weight.copy_(torch.randn(up.weight.shape, generator=torch.Generator().manual_seed(5)))
        up.to(memory_format=layout)  # type: ignore[call-overload]
        up.weight.grad = torch.empty_like(up.weight).copy_(
            torch.randn(up.weight.shape, generator=torch.Generator().manual_seed(6))
        )
        Muon(up.parameters(), lr=0.1, transposed=[up.weight], weight_decay=0.1).step()
        results.append(up.weight.detach())
    assert torch.allclose(*results, atol=1e-5)


def _stepped(network: nn.Module, optimizer: Muon) -> nn.Module:
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return network


@pytest.mark.parametrize("given", ["names", "groups", "added later"])
def test_parameters_may_come_in_groups_or_with_names(given: str) -> None:
    network, other = _network(), _network()
    _stepped(network, Muon(network.parameters(), lr=1e-2, weight_decay=0.1))
    params = list(other.parameters())
    if given == "names":
        optimizer = Muon(other.named_parameters(), lr=1e-2, weight_decay=0.1)
    elif given == "groups":
        optimizer = Muon(param_groups(other, weight_decay=0.1), lr=1e-2)
    else:
        optimizer = Muon(params[:3], lr=1e-2, weight_decay=0.1)
        optimizer.add_param_group({"params": params[3:-1]})
        optimizer.add_param_group({"params": params[-1]})
    _stepped(other, optimizer)
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
