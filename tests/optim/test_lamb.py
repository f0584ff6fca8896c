"""LAMB and NVLAMB against a textbook loop in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hasten.optim.groups import param_groups
from hasten.optim.lamb import Lamb
from tests.optim.textbook import TextbookLamb, assert_follows, network, norm, set_gradients

VARIANTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"betas": (0.8, 0.95), "always_adapt": True}, {"betas": (0.8, 0.95), "always": True}),
    ({"max_grad_norm": 1.0}, {"clip": 1.0}),
    ({"max_grad_norm": 1e6, "trust_clip": True}, {"clip": 1e6, "at_most_one": True}),
    ({"nvlamb": True}, {"clip": "unit", "always": True}),
    ({"nvlamb": True, "max_grad_norm": 1.0}, {"clip": 1.0, "always": True}),
]


@pytest.mark.parametrize(("given", "written"), VARIANTS)
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_the_textbooks(
    given: dict[str, Any], written: dict[str, Any], on_gpu: bool, layout: torch.memory_format, dtype: torch.dtype
) -> None:
    net = network(layout).to(dtype)
    book = TextbookLamb(net, lr=0.01, decay=0.1, vectors_decay=False)
    for name, value in written.items():
        setattr(book, name, value)
    optimizer = Lamb(param_groups(net, weight_decay=0.1), lr=0.01, **given)
    optimizer._reads_on_cpu = not on_gpu
    scales = [0.1 if step % 2 else 10.0 for step in range(12)]
    assert_follows(optimizer, book, net, scales, rtol=2e-5, atol=3e-6 if dtype == torch.float32 else 1e-7)


def test_a_layer_moves_by_the_rate_times_its_norm() -> None:
    net = network()
    start = [parameter.detach().clone() for parameter in net.parameters()]
    set_gradients(net, 0)
    Lamb(net.parameters(), lr=0.01, weight_decay=0.0, always_adapt=True).step()
    for result, before in zip(net.parameters(), start, strict=True):
        assert norm(result - before) == pytest.approx(0.01 * (norm(before) or result.numel() ** 0.5), rel=1e-3)


def test_nvlamb_does_not_see_the_size_of_a_gradient() -> None:
    results = []
    for sizes in ([1.0] * 4, [1.0, 50.0, 0.02, 7.0]):
        net = network()
        optimizer = Lamb(param_groups(net, weight_decay=0.1), lr=0.01, nvlamb=True)
        for step, size in enumerate(sizes):
            set_gradients(net, step, scale=size)
            optimizer.step()
        results.append([parameter.detach() for parameter in net.parameters()])
    for one, other in zip(*results, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_step_without_any_gradient_is_none() -> None:
    net = network()
    start = [parameter.detach().clone() for parameter in net.parameters()]
    Lamb(net.parameters(), nvlamb=True).step()
    assert all(torch.equal(one, other) for one, other in zip(start, net.parameters(), strict=True))


def test_gradients_of_zero_leave_finite_weights() -> None:
    net = network()
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for nvlamb in (False, True):
        Lamb(net.parameters(), nvlamb=nvlamb).step()
    assert all(parameter.isfinite().all() for parameter in net.parameters())
