"""The C++ functions against torch's operations in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from hasten.nets.surgery.normact import (
    Affine,
    Norm,
    Statistics,
    cpu_kernel_takes,
    cpu_norm_act,
    cpu_norm_act_backward,
    group_norm_act,
)
from hasten.nets.surgery.operate import operate
from hasten.observe.env import cxx_compiler

pytestmark = pytest.mark.skipif(cxx_compiler() is None, reason="needs a C++ compiler")


def last(image: Tensor) -> Tensor:
    return image.contiguous(memory_format=torch.channels_last_3d if image.ndim == 5 else torch.channels_last)


def reference(image: Tensor, norm: Norm, affine: Affine, given: Statistics | None) -> Tensor:
    weight, bias, slope = affine
    if norm.groups:
        normed = functional.group_norm(image, norm.groups, weight, bias, norm.eps)
    else:
        mean, var = given or (None, None)
        normed = functional.batch_norm(image, mean, var, weight, bias, given is None, 0.0, norm.eps)
    return normed if slope is None else functional.prelu(normed, slope)


@given(
    count=st.integers(1, 3),
    groups=st.integers(0, 3),
    width=st.integers(1, 7),
    sides=st.lists(st.integers(1, 9), min_size=2, max_size=3).filter(lambda sides: max(sides) > 1),
    slopes=st.sampled_from([0, 1, -1]),
    affine=st.booleans(),
    channels_last=st.booleans(),
    fixed=st.booleans(),
    short=st.booleans(),
    seed=st.integers(0, 99),
)
@example(2, 1, 16, [40, 30, 20], 1, True, True, False, False, 0)  # many pieces
@example(2, 0, 3, [40, 30, 20], 1, True, True, False, False, 1)
@example(3, 0, 16, [20, 30], -1, True, False, False, True, 2)
@example(2, 2, 150, [7, 5, 3], 1, True, True, False, False, 3)  # rows longer than the lanes are repeated for
def test_outputs_and_gradients_are_torchs(
    count: int, groups: int, width: int, sides: list[int], slopes: int, affine: bool, channels_last: bool, fixed: bool,
    short: bool, seed: int,
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    channels, dtype = max(1, groups) * width, torch.bfloat16 if short else torch.float32

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    image = (normal(count, channels, *sides) * 3 + 5).to(dtype)
    upstream = normal(*image.shape).to(dtype)
    image, upstream = (last(image), last(upstream)) if channels_last else (image, upstream)
    slope = torch.full([channels if slopes < 0 else 1], 0.2) if slopes else None
    own = Affine(normal(channels) if affine else None, normal(channels) if affine else None, slope)
    fixed = fixed and groups == 0
    statistics = Statistics(normal(channels), normal(channels).square()) if fixed else None
    norm = Norm(groups=groups, eps=1e-5, fixed=fixed)

    leaves = [None if each is None else each.double().requires_grad_() for each in (image, *own)]
    exact = None if statistics is None else Statistics(*(each.double() for each in statistics))
    assert leaves[0] is not None
    wanted = reference(leaves[0], norm, Affine(leaves[1], leaves[2], leaves[3]), exact)
    wanted.backward(upstream.double())
    output, used = cpu_norm_act(image, norm, own, statistics)
    results = cpu_norm_act_backward(upstream, image, norm, own, used, of_image=True)
    assert output.stride() == image.stride()
    for result, leaf in zip((results[0], *results[1]), leaves, strict=True):
        if leaf is not None:
            assert result is not None
            assert leaf.grad is not None
            # A gradient of an image that nearly cancels is small beside the sums it is made of.
            scale = max(float(leaf.grad.abs().max()), 1e-3)
            assert (result.double() - leaf.grad).abs().max() <= scale * (2e-2 if short else 2e-4)
    assert (output.double() - wanted).abs().max() <= max(1.0, float(wanted.abs().max())) * (1e-2 if short else 1e-5)


@pytest.mark.parametrize("groups", [0, 16])
def test_results_do_not_depend_on_the_number_of_threads(groups: int) -> None:
    image, upstream = (last(torch.randn(2, 16, 20, 30, 20, generator=torch.Generator().manual_seed(k))) for k in (0, 1))
    norm, own = Norm(groups=groups, eps=1e-5, dropout=0.3, seed=5), Affine(torch.ones(16), None, torch.tensor([0.1]))
    outcomes, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            output, used = cpu_norm_act(image, norm, own)
            to_image, grads = cpu_norm_act_backward(upstream, image, norm, own, used, of_image=True)
            outcomes.append([output, *used, to_image, *grads])
    finally:
        torch.set_num_threads(before)
    for others in outcomes[1:]:
        assert all(torch.equal(one, other) for one, other in zip(outcomes[0], others, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_a_dropout_sets_its_share_to_zero_and_its_gradient_follows(channels_last: bool, share: float) -> None:
    image = torch.randn(4, 3, 20, 30, 20, generator=torch.Generator().manual_seed(0))
    image = (last(image) if channels_last else image).requires_grad_()
    slope = torch.tensor([0.25], requires_grad=True)
    torch.manual_seed(1)
    output = group_norm_act(image, 3, slope=slope, dropout=share)
    kept = output.detach() != 0
    # Of independent draws, also among neighbours and equal places of channels and cases.
    assert abs(float(kept.float().mean()) - (1 - share)) < 0.005
    flat, count = kept.float() - (1 - share), kept.numel()
    for shift in ((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 0, 1), (0, 0, 0, 0, 7)):
        moved = flat.roll(shift, (0, 1, 2, 3, 4))
        assert abs(float((flat * moved).sum())) < 5 * share * (1 - share) * count**0.5
    # The same draws in torch's own operations give the same.
    exact, other = image.detach().double().requires_grad_(), slope.detach().double().requires_grad_()
    wanted = functional.prelu(functional.instance_norm(exact) * kept / (1 - share), other)
    assert torch.allclose(output.double(), wanted, atol=1e-5)
    output.square().sum().backward()
    wanted.square().sum().backward()
    assert exact.grad is not None
    assert torch.allclose(image.grad.double(), exact.grad, atol=1e-4)  # type: ignore[union-attr]
    assert torch.allclose(slope.grad.double(), other.grad, rtol=1e-5)  # type: ignore[union-attr, arg-type]


def test_the_draws_follow_from_torchs_seed_and_differ_from_call_to_call() -> None:
    image = torch.randn(1, 4, 8, 8)

    def draw() -> Tensor:
        return group_norm_act(image, 4, slope=0.0, dropout=0.5)

    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    assert not torch.equal(first, second)


class Block(nn.Module):
    def __init__(self, momentum: float | None, dropout: float) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv3d(1, 5, 3, bias=False), nn.BatchNorm3d(5, momentum=momentum)
        self.drop, self.act = nn.Dropout(dropout), nn.PReLU()

    def forward(self, image: Tensor) -> Tensor:
        output: Tensor = self.act(self.drop(self.norm(self.conv(image))))
        return output


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_batch_norm_keeps_torchs_statistics(momentum: float | None, channels_last: bool) -> None:
    torch.manual_seed(0)
    plain = Block(momentum, 0.0)
    other = copy.deepcopy(plain)
    assert operate(other, torch.randn(2, 1, 8, 8, 8)).pairs == ("norm",)
    for _ in range(3):
        image = torch.randn(2, 1, 8, 9, 10)
        results = [network(last(image) if channels_last else image) for network in (plain, other)]
        assert torch.allclose(results[0], results[1], atol=1e-5)
        for result in results:
            result.square().sum().backward()
    assert "CpuNormAct" in str(results[1].grad_fn)
    for (key, wanted), value in zip(plain.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.allclose(value.double(), wanted.double(), atol=1e-5), key
    for (key, one), two in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert torch.allclose(one.grad, two.grad, rtol=1e-3, atol=1e-3), key  # type: ignore[arg-type]
    plain.eval()
    other.eval()
    assert torch.allclose(other(image), plain(image), atol=1e-5)
    # Frozen in training, its image still has a gradient.
    grads = [torch.autograd.grad(network(image).square().sum(), network.conv.weight)[0] for network in (plain, other)]
    assert torch.allclose(grads[0], grads[1], rtol=1e-3, atol=1e-4)


def test_a_batch_norm_of_short_weights_is_torchs() -> None:
    torch.manual_seed(0)
    plain = Block(0.1, 0.0).bfloat16()
    other = copy.deepcopy(plain)
    operate(other, torch.randn(2, 1, 8, 8, 8).bfloat16())
    for training in (True, False):
        image = torch.randn(2, 1, 8, 9, 10).bfloat16()
        wanted, result = (network.train(training)(image).float() for network in (plain, other))
        assert torch.allclose(result, wanted, atol=0.05)
    assert torch.allclose(other.norm.running_var.float(), plain.norm.running_var.float(), atol=0.02)  # type: ignore[union-attr]


def test_an_output_that_is_used_twice_is_counted_once() -> None:
    class Twice(Block):
        def forward(self, image: Tensor) -> Tensor:
            normed = self.norm(self.conv(image))
            output: Tensor = self.act(self.drop(normed)) + normed
            return output

    network = Twice(0.1, 0.5)
    operate(network, torch.randn(2, 1, 8, 8, 8))
    network.norm.hasten_defers = True  # type: ignore[assignment]  # as if the flow had been another one when it was seen
    network(torch.randn(2, 1, 8, 8, 8)).sum().backward()
    assert network.norm.num_batches_tracked is not None
    assert int(network.norm.num_batches_tracked) == 1


@pytest.mark.parametrize("value", [torch.randn(1, 2, 4, 4).double(), torch.randn(1, 2, 4, 4).half()])
def test_other_types_are_torchs(value: Tensor) -> None:
    assert not cpu_kernel_takes(value)
    assert cpu_kernel_takes(value.float())
