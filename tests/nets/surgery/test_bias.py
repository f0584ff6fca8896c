"""Which biases a norm takes away, and checkpoints with and without them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from hasten.nets.surgery.bias import Cancelled, cancelled_biases, leave_out, to_unbiased
from hasten.nets.surgery.dataflow import see_flow


def through(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(*layers)
    for layer in network.modules():
        bias = layer._parameters.get("bias")
        if bias is not None:
            nn.init.normal_(bias)
    return network


def conv() -> nn.Module:
    return nn.Conv2d(1, 6, 3)


IMAGE = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(2))


def found(network: nn.Module, image: Tensor) -> list[Cancelled]:
    return cancelled_biases(see_flow(network, image))


@pytest.mark.parametrize(
    ("norm", "taken"),
    [
        (nn.InstanceNorm2d(6), True),
        (nn.InstanceNorm2d(6, affine=True, track_running_stats=True), True),
        (nn.BatchNorm2d(6), True),
        (nn.SyncBatchNorm(6), True),
        (nn.GroupNorm(6, 6), True),
        (nn.GroupNorm(3, 6), False),
        (nn.ReLU(), False),
    ],
)
def test_a_norm_takes_away_what_is_constant_where_it_takes_the_mean(norm: nn.Module, taken: bool) -> None:
    result = found(through(conv(), norm, nn.ReLU(), nn.Conv2d(6, 2, 1)), IMAGE)
    assert [each.layer for each in result] == (["0"] if taken else [])


@pytest.mark.parametrize(
    "layer",
    [nn.ConvTranspose2d(1, 6, 2, stride=2), nn.Conv2d(1, 6, 3, padding=1, padding_mode="reflect")],
)
def test_other_convolutions_are_known_too(layer: nn.Module) -> None:
    plain = through(layer, nn.BatchNorm2d(6), nn.Conv2d(6, 2, 1))
    other = copy.deepcopy(plain)
    result = found(other, IMAGE)
    assert leave_out(other, result) == ("0",)
    assert torch.allclose(other(IMAGE), plain(IMAGE), atol=1e-5)


def test_a_transposed_convolution_takes_the_size_of_its_output_as_before() -> None:
    layer = nn.ConvTranspose3d(2, 3, 3, stride=2, padding=1)
    network = nn.ModuleList([layer])
    plain = copy.deepcopy(layer)
    image = torch.randn(1, 2, 4, 4, 4)
    assert to_unbiased(network[0])
    assert layer.bias is not None
    for size in (None, [8, 7, 8]):
        wanted = plain(image, size) - layer.bias.reshape(-1, 1, 1, 1)
        assert torch.allclose(layer(image, size), wanted, atol=1e-6)


class Flow(nn.Module):
    def __init__(self, forward: Callable[[Flow, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.other = nn.BatchNorm2d(4), nn.InstanceNorm2d(4)
        self.last = nn.Conv2d(4, 1, 1)
        self.own = forward

    def forward(self, image: Tensor) -> Any:
        return self.own(self, image)


def skipped(net: Flow, image: Tensor) -> Tensor:
    result = net.a(image)
    return net.last(net.norm(result) + result)


def changed(net: Flow, image: Tensor) -> Tensor:
    return net.norm(net.a(image).relu_())


def twice(net: Flow, image: Tensor) -> Tensor:
    return net.norm(net.b(net.norm(net.a(image))))


def sometimes(net: Flow, image: Tensor) -> Tensor:
    result = net.norm(net.b(net.a(image)))
    return result + net.b(result)


@pytest.mark.parametrize("forward", [skipped, changed, twice, sometimes])
def test_an_output_that_goes_elsewhere_keeps_its_bias(forward: Any) -> None:
    assert found(Flow(forward), IMAGE) == []


def test_a_bias_that_two_layers_share_and_one_that_is_made_anew_stay() -> None:
    network = through(conv(), nn.InstanceNorm2d(6), nn.Conv2d(6, 6, 1), nn.InstanceNorm2d(6))
    network[2].bias = network[0].bias  # type: ignore[index]
    assert found(network, IMAGE) == []
    made = through(parametrizations.weight_norm(conv(), "bias", dim=0), nn.InstanceNorm2d(6))
    assert found(made, IMAGE) == []


def test_a_norm_that_only_looks_like_one_is_found_out() -> None:
    class Shifted(nn.InstanceNorm2d):
        def forward(self, image: Tensor) -> Tensor:
            return super().forward(image) + image.mean((2, 3), keepdim=True)

    assert found(through(conv(), Shifted(6), nn.ReLU()), IMAGE) == []


def test_a_layer_with_a_forward_of_its_own_keeps_its_bias() -> None:
    class Own(nn.Conv2d):
        def forward(self, image: Tensor) -> Tensor:
            return nn.functional.conv2d(image, self.weight, self.bias)

    network = through(Own(1, 6, 3), nn.BatchNorm2d(6))
    result = found(network, IMAGE)
    assert leave_out(network, result) == ()
    assert network[0].bias.requires_grad  # type: ignore[index]


def test_loading_a_part_moves_its_running_means() -> None:
    plain = nn.ModuleDict({"part": through(conv(), nn.BatchNorm2d(6)), "rest": through(nn.Conv2d(6, 6, 1))})
    forward = lambda network, image: network["rest"](network["part"](image))  # noqa: E731

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = copy.deepcopy(plain)

        def forward(self, image: Tensor) -> Tensor:
            return forward(self.parts, image)

    network, other = Both(), Both()
    leave_out(other, found(other, IMAGE))
    state = {key: torch.rand_like(value) for key, value in plain["part"].state_dict().items() if value.ndim}
    state["1.num_batches_tracked"] = torch.tensor(3)
    for loaded in (network, other):
        loaded.parts["part"].load_state_dict(state)
        loaded.eval()
    assert torch.allclose(network(IMAGE), other(IMAGE), atol=1e-5)
    # Without the running mean, what is there is shifted.
    for loaded in (network, other):
        loaded.load_state_dict({**network.state_dict(), "parts.part.0.bias": torch.zeros(6)})
        loaded.load_state_dict({"parts.part.0.bias": torch.ones(6)}, strict=False)
    assert torch.allclose(network(IMAGE), other(IMAGE), atol=1e-5)
