"""NovoGrad against a textbook loop in float64 and against MONAI's."""

from __future__ import annotations

import copy

import pytest
import torch
from monai.optimizers import Novograd as MonaiNovograd

from hasten.optim.novograd import Novograd
from tests.optim.textbook import TextbookNovograd, assert_follows, network, set_gradients

VARIANTS = pytest.mark.parametrize(
    "variant",
    [
        {},
        {"grad_averaging": True},
        {"amsgrad": True},
        {"betas": (0.95, 0.5), "grad_averaging": True, "amsgrad": True},
        {"betas": (0.0, 0.9), "grad_averaging": True},
    ],
)


@VARIANTS
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_the_textbooks(variant: dict, on_gpu: bool, layout: torch.memory_format, dtype: torch.dtype) -> None:
    net = network(layout).to(dtype)
    book = TextbookNovograd(net, lr=0.02, decay=0.1)
    book.averaging, book.amsgrad = variant.get("grad_averaging", False), variant.get("amsgrad", False)
    book.betas = variant.get("betas", (0.9, 0.98))
    optimizer = Novograd(net.parameters(), lr=0.02, weight_decay=0.1, **variant)
    optimizer._reads_on_cpu = not on_gpu
    # Norms are float32 whatever the weights are.
    assert_follows(optimizer, book, net, [1.0] * 12, rtol=1e-5, atol=2e-6 if dtype == torch.float32 else 1e-7)


@VARIANTS
def test_it_is_monais(variant: dict) -> None:
    net, other = network(), network()
    ours = Novograd(net.parameters(), lr=0.02, weight_decay=0.1, **variant)
    monais = MonaiNovograd(other.parameters(), lr=0.02, weight_decay=0.1, **variant)
    for step in range(12):
        set_gradients(net, step, missing=True)
        set_gradients(other, step, missing=True)
        ours.step()
        with torch.no_grad():
            monais.step()
    for result, wanted in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-5, atol=2e-6)


def test_monais_state_goes_on_in_ours() -> None:
    net, other = network(), network()
    monais = MonaiNovograd(other.parameters(), lr=0.02, weight_decay=0.1)
    for step in range(3):
        set_gradients(other, step)
        with torch.no_grad():
            monais.step()
    ours = Novograd(net.parameters())
    net.load_state_dict(other.state_dict())
    ours.load_state_dict(copy.deepcopy(monais.state_dict()))
    for step in range(3, 6):
        set_gradients(net, step)
        set_gradients(other, step)
        ours.step()
        with torch.no_grad():
            monais.step()
    for result, wanted in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-5, atol=2e-6)


def test_gradients_of_zero_move_nothing_but_decay() -> None:
    net = network()
    start = [parameter.detach().clone() for parameter in net.parameters()]
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Novograd(net.parameters(), lr=0.1, weight_decay=0.5).step()
    for result, before in zip(net.parameters(), start, strict=True):
        assert torch.allclose(result, before * 0.95)
