"""The Triton kernels of norm and activation on the card, against plain operations in float32."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.gpus.written_out import written_out
from hasten.kernels.use import kernels_take
from hasten.nets.surgery import fused_norms, operate
from hasten.nets.surgery.normact import batch_norm_act, group_norm_act
from tests.nets.examples import image_of, laid_out, network_of

SHARE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Of the largest value."""


def leaves_of(shape: tuple[int, ...], dtype: torch.dtype, slope: Any, affine: bool) -> list[Any]:
    generator = torch.Generator("cuda").manual_seed(0)
    layout = torch.channels_last_3d if len(shape) == 5 else torch.channels_last

    def normal(*sides: int) -> Tensor:
        return torch.randn(sides, generator=generator, device="cuda")

    image = (normal(*shape) * 3 + 5).to(dtype).contiguous(memory_format=layout)
    factor = {"one": normal(1), "each": normal(shape[1])}.get(slope, slope)
    weights = [normal(shape[1]), normal(shape[1])] if affine else [None, None]
    return [image, *weights, factor]


def outcome(call: Any, leaves: list[Any], groups: int, upstream: Tensor) -> list[Tensor]:
    given = [each.detach().clone().requires_grad_() if torch.is_tensor(each) else each for each in leaves]
    image, weight, bias, slope = given
    result = call(image, groups, weight, bias, slope, 1e-5)
    result.backward(upstream.to(result.dtype))
    return [result.detach(), *(each.grad for each in given if torch.is_tensor(each))]


@pytest.mark.parametrize("dtype", SHARE, ids=str)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((2, 32, 64, 64, 64), 32), ((2, 320, 4, 4, 4), 320), ((2, 33, 17, 13, 11), 33), ((2, 24, 30, 50), 4),
     ((3, 10, 1, 1, 2), 2), ((1, 96, 48, 40, 56), 8)],
)  # fmt: skip
@pytest.mark.parametrize(("slope", "affine"), [(0.01, True), ("one", False), ("each", True), (None, True)])
def test_values_and_gradients(
    shape: tuple[int, ...], groups: int, dtype: torch.dtype, slope: Any, affine: bool
) -> None:
    leaves = leaves_of(shape, dtype, slope, affine)
    assert kernels_take(leaves[0]), "Triton does not work here"
    upstream = torch.randn(shape, device="cuda").to(dtype)
    result = outcome(group_norm_act, leaves, groups, upstream)
    exact = [each.double() if torch.is_tensor(each) else each for each in leaves]
    wanted = outcome(written_out, exact, groups, upstream)
    assert result[0].dtype == result[1].dtype == dtype
    assert result[0].stride() == result[1].stride() == leaves[0].stride()
    for place, (one, other) in enumerate(zip(result, wanted, strict=True)):
        apart = (one.double() - other).abs() / other.abs().max()
        # A voxel so near to 0 that rounding changes its sign has the other slope: a few of millions may be off.
        off = (apart > SHARE[dtype]).sum()
        assert off <= 1e-5 * apart.numel(), f"{place}: {int(off)} off, by up to {float(apart.max()):.3g} of the largest"


def test_dropouts_zeros_are_drawn_again_in_the_backward_pass() -> None:
    image = torch.randn(2, 16, 24, 24, 24, device="cuda").contiguous(memory_format=torch.channels_last_3d)
    weight, slope = torch.ones(16, device="cuda", requires_grad=True), torch.full((1,), 0.5, device="cuda")
    torch.manual_seed(0)
    result, _ = batch_norm_act(image, weight, None, slope, 1e-5, 0.5, None)
    assert 0.45 < float((result == 0).float().mean()) < 0.55
    result.sum().backward()
    exact = torch.ones(16, device="cuda", requires_grad=True)
    wanted = functional.batch_norm(image, None, None, exact, None, True) * (result != 0) / 0.5
    functional.prelu(wanted, slope).sum().backward()
    assert weight.grad is not None
    assert torch.allclose(weight.grad, exact.grad, rtol=1e-3, atol=1e-1)  # type: ignore[arg-type]
    torch.manual_seed(0)
    assert torch.equal(result, batch_norm_act(image, weight, None, slope, 1e-5, 0.5, None)[0])
    assert not torch.equal(result, batch_norm_act(image, weight, None, slope, 1e-5, 0.5, None)[0])


def test_it_repeats_bit_by_bit() -> None:
    leaves = leaves_of((2, 32, 48, 48, 48), torch.bfloat16, "one", True)
    upstream = torch.randn_like(leaves[0])
    first, second = (outcome(group_norm_act, leaves, 32, upstream) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_more_than_2_to_the_31_elements() -> None:
    """Indices of 64 bits. 4.3 GB for each of image, output, gradient."""
    if torch.cuda.get_device_properties(0).total_memory < 30e9:
        pytest.skip("needs 30 GB")
    image = torch.zeros(1, 33, 408, 400, 400, device="cuda", dtype=torch.bfloat16)
    image = image.contiguous(memory_format=torch.channels_last_3d)
    image[:, -1, -8:] = 1
    result = group_norm_act(image, 33, slope=0.0)
    share = torch.tensor(8 / 408)
    wanted = (1 - share) / (share * (1 - share) + 1e-5).sqrt()
    assert torch.allclose(result[0, -1, -1, -1, -1].float().cpu(), wanted, rtol=1e-2)
    assert result[:, :-1].abs().max() == 0
    assert result[0, -1, 0, 0, 0] == 0


def networks(name: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """One with torch's norms, one with the kernels, both channels-last."""
    plain, image = laid_out(network_of(name, 3).cuda(), image_of(name, 3).cuda(), last=True)
    operate(plain, image)
    other = copy.deepcopy(plain)
    assert fused_norms(other, True) > 0
    return plain, other, image


def passes(network: nn.Module, call: Any, image: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    result = call(image)
    result.float().square().mean().backward()
    return result.detach().float(), {
        key: each.grad for key, each in network.named_parameters() if each.grad is not None
    }


@pytest.mark.parametrize("name", ["unet", "unet batch", "unet group", "dynunet", "basicunet"])
@pytest.mark.parametrize("how", ["autocast", "evaluation", "checkpoint", "compiled"])
def test_a_network(name: str, how: str) -> None:
    torch.backends.cudnn.allow_tf32 = False
    plain, other, image = networks(name)
    if how == "evaluation":
        plain.eval()
        other.eval()
    call: Any = other
    if how == "checkpoint":
        call = lambda image: checkpoint(other, image, use_reentrant=False)  # noqa: E731
    if how == "compiled":
        call = torch.compile(other, fullgraph=True, backend="aot_eager")
    with torch.autocast("cuda", torch.bfloat16, enabled=how == "autocast"):
        wanted, theirs = passes(plain, plain, image)
        result, mine = passes(other, call, image)
    share = 5e-2 if how == "autocast" else 1e-3
    assert (result - wanted).abs().max() <= share * wanted.abs().max()
    largest = max(each.abs().max() for each in theirs.values())
    for key, value in mine.items():
        assert (value - theirs[key]).abs().max() <= 2 * share * largest, key
    for one, another in zip(other.buffers(), plain.buffers(), strict=True):
        assert torch.allclose(one.float(), another.float(), rtol=share, atol=share)
