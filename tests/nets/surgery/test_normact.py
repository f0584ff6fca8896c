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

from hasten.nets.surgery.fuse import fuse_block
from hasten.nets.surgery.normact import group_norm_act


def block(act: object, *, norm: object = "instance", dropout: float = 0.0) -> nn.Module:
    return ADN(in_channels=4, act=act, norm=norm, norm_dim=3, dropout=dropout, dropout_dim=3)


@pytest.mark.parametrize("act", ["PRELU", ("PRELU", {"num_parameters": 4}), "RELU",
                                 ("LEAKYRELU", {"negative_slope": 0.2, "inplace": True})])  # fmt: skip
def test_a_block_of_monai_gives_what_it_gave(act: object) -> None:
    plain = block(act)
    fused = copy.deepcopy(plain)
    assert fuse_block(fused)
    assert list(fused.state_dict()) == list(plain.state_dict())
    image = torch.randn(2, 4, 5, 6, 7)
    assert torch.allclose(fused(image), plain(image), atol=1e-5)


@pytest.mark.parametrize(
    "other",
    [
        block("PRELU", norm="batch"),
        block("PRELU", norm=("instance", {"affine": True})),
        block("PRELU", norm=("instance", {"track_running_stats": True})),
        block("PRELU", dropout=0.1),
        block("TANH"),
        nn.Sequential(nn.InstanceNorm3d(4), nn.PReLU()),
    ],
)
def test_other_blocks_are_left_alone(other: nn.Module) -> None:
    assert not fuse_block(other)


def test_a_single_voxel_is_refused_as_torch_refuses_it() -> None:
    fused = block("PRELU")
    assert fuse_block(fused)
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        fused(torch.randn(1, 4, 1, 1, 1))


SLOPES: dict[str, tuple[float | None, int]] = {"none": (None, 0), "relu": (0.0, 0), "leaky": (0.3, 0), "one": (0.2, 1)}
"""A fixed slope, or the start of a learned one with that many elements (C for -1)."""
SLOPES["channels"] = (-0.2, -1)


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(1, 3),
    groups=st.integers(1, 3),
    width=st.integers(1, 3),
    sides=st.lists(st.integers(1, 6), min_size=2, max_size=3).filter(lambda sides: max(sides) > 1),
    slope=st.sampled_from(sorted(SLOPES)),
    affine=st.booleans(),
    last=st.booleans(),
    seed=st.integers(0, 99),
)
@example(1, 2, 2, [200, 100], "one", True, True, 0)  # more than one piece of a channels-last image
def test_groups_of_any_width_are_torchs(
    count: int, groups: int, width: int, sides: list[int], slope: str, affine: bool, last: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    channels = groups * width

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    image, upstream = normal(count, channels, *sides) * 3 + 1, normal(count, channels, *sides)
    if last:
        image = image.contiguous(memory_format=torch.channels_last_3d if len(sides) == 3 else torch.channels_last)
    start, learned = SLOPES[slope]
    factor: torch.Tensor | float | None = start
    if learned:
        factor = torch.full([channels if learned < 0 else 1], start, dtype=torch.float64)
    weights = [normal(channels), normal(channels)] if affine else [None, None]
    results = []
    for ours in (True, False):
        given = [image, *weights, factor]
        leaves = [
            each.clone(memory_format=torch.preserve_format).requires_grad_() if torch.is_tensor(each) else each
            for each in given
        ]
        if ours:
            result = group_norm_act(leaves[0], groups, *leaves[1:], 1e-5)  # type: ignore[arg-type, misc]
        else:
            result = functional.group_norm(leaves[0], groups, leaves[1], leaves[2])  # type: ignore[arg-type]
            if learned:
                result = functional.prelu(result, leaves[3])  # type: ignore[arg-type]
            elif start is not None:
                result = functional.leaky_relu(result, start)
        result.backward(upstream)
        results.append([result, *(each.grad for each in leaves if torch.is_tensor(each))])
    for result, wanted in zip(*results, strict=True):
        assert torch.allclose(result, wanted, atol=1e-8)


def test_a_slice_of_a_batch_and_a_strided_gradient_are_taken() -> None:
    whole = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    image = whole[:, ::2, 1:].requires_grad_()
    result = group_norm_act(image, 4, None, None, 0.0)
    (gradient,) = torch.autograd.grad(result.transpose(2, 3).sum() * 2, image)
    assert torch.allclose(result, functional.instance_norm(image).relu(), atol=1e-5)
    assert gradient.shape == image.shape
