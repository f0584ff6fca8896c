"""Convolutions of few channels in C++ against torch's in float64."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.nets.surgery.bias import to_unbiased
from hasten.nets.surgery.few_cpu import few_channel_layers
from hasten.nets.surgery.operate import operate, undo
from hasten.observe.env import cxx_compiler

pytestmark = pytest.mark.skipif(cxx_compiler() is None, reason="needs a C++ compiler")


def last(image: Tensor) -> Tensor:
    """Dense in channels-last also where a side or the channels are 1."""
    order = (0, *range(2, image.ndim), 1)
    return image.permute(order).contiguous().permute(0, -1, *range(1, image.ndim - 1))


def layer_of(dims: int, inputs: int, outputs: int, *, transposed: bool, bias: bool = True) -> nn.Module:
    kind = getattr(nn, f"Conv{'Transpose' * transposed}{dims}d")
    more = {"stride": 2, "output_padding": 1} if transposed else {}
    layer: nn.Module = kind(inputs, outputs, 3, padding=1, bias=bias, **more)
    return layer


@given(
    count=st.integers(1, 3),
    inputs=st.integers(2, 37),
    outputs=st.integers(1, 4),
    sides=st.lists(st.integers(1, 20), min_size=2, max_size=3),
    transposed=st.booleans(),
    bias=st.booleans(),
    short=st.booleans(),
)
@example(2, 3, 3, [20, 28, 40], False, True, False)
@example(1, 32, 3, [4, 6, 37], True, True, False)
@example(1, 2, 4, [40, 66], False, True, True)
def test_outputs_and_gradients_are_torchs(
    count: int, inputs: int, outputs: int, sides: list[int], transposed: bool, bias: bool, short: bool
) -> None:
    torch.manual_seed(0)
    inputs = inputs if transposed else min(inputs, 4)
    layer = layer_of(len(sides), inputs, outputs, transposed=transposed, bias=bias)
    exact = copy.deepcopy(layer).double()
    assert few_channel_layers(layer) == ("",)
    image = last(torch.randn(count, inputs, *sides).to(torch.bfloat16 if short else torch.float32))
    image, precise = image.requires_grad_(), image.detach().double().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=short):
        output = layer(image)
    expected = exact(precise)
    upstream = torch.randn(expected.shape).to(output)
    output.backward(upstream)
    expected.backward(upstream.double())
    if image.is_contiguous():
        return  # in both formats, so that torch computed it
    assert "_Few" in type(output.grad_fn).__name__
    assert output.dtype == image.dtype
    assert output.permute(0, *range(2, output.ndim), 1).is_contiguous()
    bound = 1e-2 if short else 1e-5
    assert_near(output, expected, bound)
    assert_near(image.grad, precise.grad, bound)
    for one, other in zip(layer.parameters(), exact.parameters(), strict=True):
        assert one.grad.dtype == torch.float32
        assert_near(one.grad, other.grad, bound)


def assert_near(value: Tensor | None, exact: Tensor | None, bound: float) -> None:
    assert value is not None
    assert exact is not None
    away, scale = (value.double() - exact).detach().abs().max(), exact.detach().abs().max()
    assert away <= bound * max(1.0, float(scale))


@pytest.mark.parametrize("transposed", [False, True])
def test_results_do_not_depend_on_the_number_of_threads(transposed: bool) -> None:
    layer = layer_of(3, 4, 3, transposed=transposed)
    few_channel_layers(layer)
    image = last(torch.randn(2, 4, 7, 11, 13)).requires_grad_()
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            output = layer(image)
            parts = torch.autograd.grad(output, (image, *layer.parameters()), torch.ones_like(output))
            results.append([output.detach(), *(parts if not transposed else ())])
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv3d(3, 5, 3, padding=1),
        nn.Conv3d(5, 3, 3, padding=1),
        nn.Conv3d(3, 3, 1),
        nn.Conv3d(3, 3, 3, padding=0),
        nn.Conv3d(3, 3, 3, padding=1, groups=3),
        nn.Conv3d(3, 3, 3, padding=1, padding_mode="reflect"),
        nn.Conv3d(3, 3, 3, stride=2, padding=1),
        nn.ConvTranspose3d(8, 3, 3, stride=2, padding=1),
        type("Own", (nn.Conv3d,), {"forward": lambda self, image: image})(3, 3, 3, padding=1),
    ],
)
def test_other_layers_stay_torchs(layer: nn.Module) -> None:
    kind = type(layer)
    assert few_channel_layers(layer) == ()
    assert type(layer) is kind


def test_images_that_the_functions_do_not_take_are_torchs() -> None:
    layer = layer_of(2, 3, 2, transposed=False)
    exact = copy.deepcopy(layer)
    few_channel_layers(layer)
    for image in (torch.randn(1, 3, 5, 6), last(torch.randn(0, 3, 5, 6)), torch.randn(3, 5, 6)):
        assert torch.equal(layer(image), exact(image))
    with pytest.raises(RuntimeError, match="channels"):
        layer(last(torch.randn(1, 4, 5, 6)))
    output = layer.double()(last(torch.randn(1, 3, 5, 6)).double())
    assert "_Few" not in type(output.grad_fn).__name__


@pytest.mark.parametrize("transposed", [False, True])
def test_a_bias_that_is_left_out_stays_out(transposed: bool) -> None:
    layer = layer_of(3, 4, 2, transposed=transposed)
    to_unbiased(layer)
    bare = copy.deepcopy(layer)
    assert few_channel_layers(layer) == ("",)
    image = last(torch.randn(1, 4, 5, 6, 7))
    assert_near(layer(image), bare(image).double(), 1e-5)


def test_operate_and_undo() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.InstanceNorm2d(8), nn.ReLU(),
                            layer_of(2, 8, 3, transposed=True), nn.InstanceNorm2d(3), nn.ReLU(),
                            nn.Conv2d(3, 3, 3, padding=1))  # fmt: skip
    exact = copy.deepcopy(network)
    surgery = operate(network, torch.randn(1, 3, 8, 8))
    assert (surgery.few_channels, surgery.unbiased) == (("3", "6"), ("0", "3"))
    assert "2 convolutions have a C++ function for few channels" in str(surgery)
    image = last(torch.randn(2, 3, 8, 8))
    assert_near(network(image), exact(image).double(), 1e-5)
    assert torch.equal(pickle.loads(pickle.dumps(network))(image), network(image))
    undo(network)
    assert [type(layer) for layer in network] == [type(layer) for layer in exact]
    assert all(weight.requires_grad for weight in network.parameters())
    assert torch.equal(network(image), exact(image))
