"""The fused operation against torch's own instance norm and activation."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from monai.networks.blocks import ADN
from torch import nn
from torch.nn import functional

from hasten.nets.normact import NormAct, norm_act


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 3),
    channels=st.integers(1, 5),
    sides=st.lists(st.integers(1, 6), min_size=2, max_size=3).filter(lambda sides: max(sides) > 1),
    slope=st.floats(-0.5, 1.5),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
@example(count=1, channels=1, sides=[6, 6, 6], slope=0.0, last=False, seed=6)  # the slope's gradient nearly cancels
def test_values_and_gradients_are_torchs(
    count: int, channels: int, sides: list[int], slope: float, last: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    image = torch.randn(count, channels, *sides, generator=generator, dtype=torch.float64)
    upstream = torch.randn(image.shape, generator=generator, dtype=torch.float64)
    if last:
        image = image.contiguous(memory_format=torch.channels_last_3d if len(sides) == 3 else torch.channels_last)
    factor = torch.tensor([slope], dtype=torch.float64)
    one, other = image.clone().requires_grad_(), image.clone().requires_grad_()
    mine, theirs = factor.clone().requires_grad_(), factor.clone().requires_grad_()
    found = norm_act(one, mine, 1e-5)
    wanted = functional.prelu(functional.instance_norm(other, eps=1e-5), theirs)
    assert torch.allclose(found, wanted, atol=1e-9)
    found.backward(upstream)
    wanted.backward(upstream)
    assert one.grad is not None
    assert other.grad is not None
    assert mine.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(one.grad, other.grad, atol=1e-6)
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_the_memory_format_is_kept_both_ways(layout: torch.memory_format) -> None:
    image = torch.randn(2, 4, 3, 5, 6).contiguous(memory_format=layout).requires_grad_()
    found = norm_act(image, torch.tensor([0.1]), 1e-5)
    assert found.is_contiguous(memory_format=layout)
    (gradient,) = torch.autograd.grad(found.sum(), image)
    assert gradient.is_contiguous(memory_format=layout)


def test_bf16_is_no_further_from_the_truth_than_torchs_own_two() -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(2, 8, 10, 12, 9, generator=generator) * 3 + 1
    upstream = torch.randn(exact.shape, generator=generator)
    slope = torch.tensor([0.25])

    def gradient(image: torch.Tensor, *, fused: bool) -> torch.Tensor:
        image = image.clone().requires_grad_()
        apart = functional.prelu(functional.instance_norm(image), slope.to(image.dtype))
        found = norm_act(image, slope, 1e-5) if fused else apart
        return torch.autograd.grad(found, image, upstream.to(image.dtype))[0].float()

    truth, short = gradient(exact, fused=False), exact.bfloat16()
    errors = {fused: (gradient(short, fused=fused) - truth).norm() for fused in (False, True)}
    assert errors[True] <= 1.2 * errors[False]


def block(act: object, *, norm: object = "instance", dropout: float = 0.0) -> nn.Module:
    return ADN(in_channels=4, act=act, norm=norm, norm_dim=3, dropout=dropout, dropout_dim=3)


@pytest.mark.parametrize("act", ["PRELU", "RELU", ("LEAKYRELU", {"negative_slope": 0.2, "inplace": True})])
def test_a_block_of_monai_gives_what_it_gave(act: object) -> None:
    plain = block(act)
    assert NormAct.takes(plain)
    parts = copy.deepcopy(plain)
    fused = NormAct(parts.get_submodule("N"), parts.get_submodule("A"))
    assert list(fused.state_dict()) == list(plain.state_dict())
    image = torch.randn(2, 4, 5, 6, 7)
    assert torch.allclose(fused(image), plain(image), atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        block("PRELU", norm="batch"),
        block("PRELU", norm=("instance", {"affine": True})),
        block("PRELU", norm=("instance", {"track_running_stats": True})),
        block(("PRELU", {"num_parameters": 4})),
        block("PRELU", dropout=0.1),
        block("TANH"),
        nn.Sequential(nn.InstanceNorm3d(4), nn.PReLU()),
    ],
)
def test_other_blocks_are_left_alone(other: nn.Module) -> None:
    assert not NormAct.takes(other)


def test_a_single_voxel_is_refused_as_torch_refuses_it() -> None:
    fused = NormAct(nn.InstanceNorm3d(4), nn.PReLU())
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        fused(torch.randn(1, 4, 1, 1, 1))
