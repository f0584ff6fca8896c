"""LARS, LAMB, NVLAMB and NovoGrad against textbook loops in float64, and NovoGrad against MONAI's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from monai.optimizers import Novograd as MonaiNovograd

from hasten.optim.groups import param_groups
from hasten.optim.lamb import Lamb
from hasten.optim.lars import Lars
from hasten.optim.novograd import Novograd
from tests.optim.textbook import (
    TextbookLamb,
    TextbookLars,
    TextbookNovograd,
    assert_follows,
    network,
    set_gradients,
)

NOVOGRADS: list[dict[str, Any]] = [
    {},
    {"grad_averaging": True},
    {"amsgrad": True},
    {"betas": (0.95, 0.5), "grad_averaging": True, "amsgrad": True},
    {"betas": (0.0, 0.9), "grad_averaging": True},
]
ADAPTED: list[tuple[type, dict[str, Any], dict[str, Any]]] = [
    (Lamb, {}, {}),
    (Lamb, {"betas": (0.8, 0.95)}, {"betas": (0.8, 0.95)}),
    (Lamb, {"nvlamb": True}, {"nvlamb": True}),
    (Lars, {}, {}),
    (Lars, {"momentum": 0.0, "trust": 0.1}, {"momentum": 0.0, "trust": 0.1}),
    *(
        (Novograd, given, {"averaging" if key == "grad_averaging" else key: given[key] for key in given})
        for given in NOVOGRADS
    ),
]
"""A class, its arguments, and what the textbook's loop calls them."""


@pytest.mark.parametrize(("kind", "given", "written"), ADAPTED)
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_the_textbooks(
    kind: type, given: dict[str, Any], written: dict[str, Any], on_gpu: bool, layout: torch.memory_format,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    net = network(layout).to(dtype)
    rate = {Lamb: 0.01, Lars: 0.3, Novograd: 0.02}[kind]
    if kind is Novograd:
        book: Any = TextbookNovograd(net, lr=rate, decay=0.1)
        optimizer: Any = Novograd(net.parameters(), lr=rate, weight_decay=0.1, **given)
    else:
        book = {Lamb: TextbookLamb, Lars: TextbookLars}[kind](net, lr=rate, decay=0.1, vectors_decay=False)
        optimizer = kind(param_groups(net, weight_decay=0.1), lr=rate, **given)
    for name, value in written.items():
        setattr(book, name, value)
    optimizer._reads_on_cpu = not on_gpu
    scales = [0.1 if step % 2 else 10.0 for step in range(12)] if kind is Lamb else [1.0] * 12
    # NovoGrad's norms are float32 whatever the weights are.
    assert_follows(optimizer, book, net, scales, rtol=2e-5, atol=3e-6 if dtype == torch.float32 else 1e-7)


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


def test_gradients_of_zero_leave_finite_weights_and_their_decay() -> None:
    net, other = network(), network()
    start = [parameter.detach().clone() for parameter in other.parameters()]
    for parameter in (*net.parameters(), *other.parameters()):
        parameter.grad = torch.zeros_like(parameter)
    for nvlamb in (False, True):
        Lamb(net.parameters(), nvlamb=nvlamb).step()
    assert all(parameter.isfinite().all() for parameter in net.parameters())
    Novograd(other.parameters(), lr=0.1, weight_decay=0.5).step()
    for result, before in zip(other.parameters(), start, strict=True):
        assert torch.allclose(result, before * 0.95)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("given", NOVOGRADS)
def test_novograd_is_monais(given: dict[str, Any], resumed: bool) -> None:
    """From the start, or from MONAI's state after 3 steps."""
    net, other = network(), network()
    ours = Novograd(net.parameters(), lr=0.02, weight_decay=0.1, **given)
    monais = MonaiNovograd(other.parameters(), lr=0.02, weight_decay=0.1, **given)
    for step in range(12):
        if resumed and step == 3:
            net.load_state_dict(other.state_dict())
            ours.load_state_dict(copy.deepcopy(monais.state_dict()))
        for each, optimizer in ((net, ours), (other, monais)):
            set_gradients(each, step, missing=not resumed)
            if optimizer is monais or not resumed or step >= 3:
                with torch.no_grad():
                    optimizer.step()
    for result, wanted in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-5, atol=2e-6)
