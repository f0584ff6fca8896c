"""Lookahead against the paper's loop."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hasten.optim.lookahead import Lookahead
from hasten.optim.muon import Muon
from hasten.optim.schedule import ScheduleLR
from tests.optim.textbook import network, set_gradients, spoil_gradients


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize(("every", "alpha"), [(1, 0.5), (3, 0.5), (4, 0.8), (2, 1.0)])
def test_pulls_are_the_papers(on_gpu: bool, every: int, alpha: float) -> None:
    net, other = network(), network()
    inner = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    optimizer = Lookahead(inner, every=every, alpha=alpha)
    optimizer._reads_on_cpu = not on_gpu
    plain = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    slow = [parameter.detach().clone() for parameter in other.parameters()]
    for step in range(1, 14):
        set_gradients(net, step)
        set_gradients(other, step)
        optimizer.step()
        plain.step()
        if step % every == 0:
            for parameter, kept in zip(other.parameters(), slow, strict=True):
                kept += alpha * (parameter.detach() - kept)
                parameter.data.copy_(kept)
    for result, wanted in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_skipped_steps_are_not_counted() -> None:
    for on_gpu in (False, True):
        net, other = network(), network()
        one, two = (
            Lookahead(torch.optim.AdamW(each.parameters(), lr=0.1, fused=True), every=2) for each in (net, other)
        )
        one._reads_on_cpu = two._reads_on_cpu = not on_gpu
        for step in range(6):
            if step % 2:
                set_gradients(net, 99)
                spoil_gradients(net)
                one.grad_scale, one.found_inf = None, torch.ones(())
                one.step()
                del one.grad_scale, one.found_inf
            for each, optimizer in ((net, one), (other, two)):
                set_gradients(each, step)
                optimizer.step()
        assert all(torch.equal(left, right) for left, right in zip(net.parameters(), other.parameters(), strict=True))


def test_groups_are_the_inner_ones_and_stay_so() -> None:
    net = network()
    inner = torch.optim.AdamW(net.parameters(), lr=0.1)
    optimizer = Lookahead(inner)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is inner.param_groups
    optimizer.param_groups[0]["lr"] = 0.5
    assert inner.param_groups[0]["lr"] == 0.5
    extra = torch.nn.Parameter(torch.zeros(3))
    optimizer.add_param_group({"params": [extra], "lr": 0.2})
    assert len(inner.param_groups) == 2
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups is inner.param_groups
    ScheduleLR(optimizer, lambda step: 0.25)
    assert [group["lr"] for group in inner.param_groups] == [0.25, 0.25]
    extra.grad = torch.ones(3)
    optimizer.zero_grad()
    assert extra.grad is None


def test_a_state_without_slow_weights_starts_them_where_the_weights_are() -> None:
    net = network()
    inner = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    set_gradients(net, 0)
    inner.step()
    optimizer = Lookahead(torch.optim.SGD(net.parameters(), lr=0.7), every=1, alpha=0.25)
    optimizer.load_state_dict(inner.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    before = [parameter.detach().clone() for parameter in net.parameters()]
    set_gradients(net, 1)
    inner.step()
    wanted = [
        start + 0.25 * (parameter.detach() - start) for start, parameter in zip(before, net.parameters(), strict=True)
    ]
    for parameter, start in zip(net.parameters(), before, strict=True):
        parameter.data.copy_(start)
    # The momentum above was the loaded state's own tensor: once more from a fresh one.
    fresh = Lookahead(torch.optim.SGD(net.parameters(), lr=0.1), every=1, alpha=0.25)
    set_gradients(net, 0)
    state = torch.optim.SGD(network().parameters(), lr=0.1, momentum=0.9).state_dict()
    state["state"] = {
        number: {"momentum_buffer": parameter.grad.clone()}
        for number, parameter in enumerate(net.parameters())
        if parameter.grad is not None
    }
    fresh.load_state_dict(state)
    set_gradients(net, 1)
    fresh.step()
    for result, value in zip(net.parameters(), wanted, strict=True):
        assert torch.allclose(result, value, rtol=1e-5, atol=1e-6)


def test_an_inner_one_that_cannot_skip_is_told_of() -> None:
    net = network()
    optimizer = Lookahead(torch.optim.SGD(net.parameters(), lr=0.1))
    assert not optimizer._step_supports_amp_scaling
    optimizer.found_inf = torch.zeros(())
    with pytest.raises(ValueError, match=r"SGD in a Lookahead .* fused=True"):
        optimizer.step()


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, Muon])
@pytest.mark.parametrize("done", [0, 5])
def test_a_copy_goes_on_bit_for_bit(copied: Callable[[Any], Any], kind: Any, done: int) -> None:
    net = network()
    optimizer = Lookahead(kind(net.parameters(), lr=0.1), every=3, alpha=0.25)
    for step in range(done):
        set_gradients(net, step)
        optimizer.step()
    twin, other = copied((net, optimizer))
    assert other.param_groups is other.inner.param_groups
    for step in range(done, done + 5):
        for each, its in ((net, optimizer), (twin, other)):
            set_gradients(each, step)
            its.step()
    for result, wanted in zip(twin.parameters(), net.parameters(), strict=True):
        assert result is not wanted
        assert torch.equal(result, wanted)
    assert other.state_dict()["lookahead"]["count"] == done + 5
