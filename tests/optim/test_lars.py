"""LARS against a textbook loop in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.optim.groups import param_groups
from hasten.optim.lars import Lars
from tests.optim.textbook import TextbookLars, assert_follows, network, norm, set_gradients

VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"nesterov": True, "momentum": 0.5}, {"nesterov": True, "momentum": 0.5}),
    ({"trust_clip": True, "trust": 1.0, "always_adapt": True}, {"at_most_one": True, "trust": 1.0, "always": True}),
    ({"momentum": 0.0, "trust": 0.1}, {"momentum": 0.0, "trust": 0.1}),
]


@pytest.mark.parametrize(("given", "written"), VARIANTS)
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_the_textbooks(
    given: dict[str, Any], written: dict[str, Any], on_gpu: bool, layout: torch.memory_format, dtype: torch.dtype
) -> None:
    net = network(layout).to(dtype)
    book = TextbookLars(net, lr=0.3, decay=0.1, vectors_decay=False)
    for name, value in written.items():
        setattr(book, name, value)
    optimizer = Lars(param_groups(net, weight_decay=0.1), lr=0.3, **given)
    optimizer._reads_on_cpu = not on_gpu
    assert_follows(optimizer, book, net, [1.0] * 12, rtol=1e-5, atol=2e-6 if dtype == torch.float32 else 1e-7)


def test_without_adaptation_it_is_sgd() -> None:
    net, other = network(), network()
    ours = Lars(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    sgd = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for step in range(10):
        set_gradients(net, step)
        set_gradients(other, step)
        ours.step()
        sgd.step()
    for result, wanted in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_a_layer_moves_by_its_share() -> None:
    net = network()
    start = [parameter.detach().clone() for parameter in net.parameters()]
    set_gradients(net, 0)
    Lars(net.parameters(), lr=1.0, trust=0.01, always_adapt=True).step()
    for result, before in zip(net.parameters(), start, strict=True):
        if norm(before) > 0:
            assert norm(result - before) == pytest.approx(0.01 * norm(before), rel=1e-3)
