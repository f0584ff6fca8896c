"""Optimizers on the card: the host's steps, no wait for a value, capture in a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.graphs import no_sync
from tests.optim.test_base import ALL, MAKERS
from tests.optim.textbook import network, set_gradients, spoil_gradients


@pytest.fixture(autouse=True)
def full_precision() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@ALL
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_the_card_makes_the_hosts_steps(name: str, layout: torch.memory_format) -> None:
    host, card = network(layout), network(layout).cuda()
    one, two = MAKERS[name](host), MAKERS[name](card)
    two_scale = torch.tensor(64.0, device="cuda")
    for step in range(8):
        set_gradients(host, step, missing=True)
        one.step()
        set_gradients(host, step, missing=True, scale=64.0)
        for ours, other in zip(host.parameters(), card.parameters(), strict=True):
            other.grad = None if ours.grad is None else torch.empty_like(other).copy_(ours.grad)
        two.grad_scale, two.found_inf = two_scale, torch.zeros((), device="cuda")  # type: ignore[attr-defined]
        two.step()
        del two.grad_scale, two.found_inf  # type: ignore[attr-defined]
    # Muon multiplies in bf16 there: a quarter of a percent of each update of some 0.004.
    atol = 5e-4 if "muon" in name else 1e-4
    for result, wanted in zip(card.parameters(), host.parameters(), strict=True):
        assert torch.allclose(result.cpu(), wanted, rtol=1e-3, atol=atol)


@ALL
@pytest.mark.parametrize("broken", [False, True])
def test_a_step_waits_for_no_value(name: str, broken: bool) -> None:
    net = network().cuda()
    optimizer = MAKERS[name](net)
    for step in range(2):
        set_gradients_on_card(net, step)
        optimizer.step()
    set_gradients_on_card(net, 5)
    if broken:
        spoil_gradients(net)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    result = torch.full((), float(broken), device="cuda")
    with no_sync():
        optimizer.grad_scale, optimizer.found_inf = None, result  # type: ignore[attr-defined]
        optimizer.step()
    same = all(torch.equal(left, right) for left, right in zip(before, net.parameters(), strict=True))
    assert same == broken


@ALL
def test_a_captured_step_follows_rate_and_count(name: str) -> None:
    net, other = network().cuda(), network().cuda()
    rate = torch.tensor(0.02, device="cuda")
    one, two = MAKERS[name](net), MAKERS[name](other, lr=rate)
    for group in getattr(two, "inner", two).param_groups:
        if "capturable" in group:
            group["capturable"] = True
    gradients = [torch.zeros_like(parameter) for parameter in other.parameters()]

    def feed(step: int) -> None:
        set_gradients_on_card(net, step)
        for gradient, parameter in zip(gradients, net.parameters(), strict=True):
            assert parameter.grad is not None
            gradient.copy_(parameter.grad)

    def step_of_two() -> None:
        for gradient, parameter in zip(gradients, other.parameters(), strict=True):
            parameter.grad = gradient.clone()
        two.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for step in range(3):
            feed(step)
            one.step()
            step_of_two()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step_of_two()
    for step in range(3, 9):
        for group in one.param_groups:
            group["lr"] = 0.02 / step
        rate.fill_(0.02 / step)
        feed(step)
        one.step()
        graph.replay()
    for result, wanted in zip(other.parameters(), net.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-3, atol=1e-4)


def set_gradients_on_card(net: torch.nn.Module, seed: int) -> None:
    host = network()
    set_gradients(host, seed)
    for ours, parameter in zip(host.parameters(), net.parameters(), strict=True):
        assert ours.grad is not None
        parameter.grad = torch.empty_like(parameter).copy_(ours.grad)
