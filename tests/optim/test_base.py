"""What all of Hasten's optimizers promise: skipped steps, scaled gradients, resuming, memory formats, tensor rates."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hasten.optim.groups import param_groups, transposed_filters
from hasten.optim.lamb import Lamb
from hasten.optim.lars import Lars
from hasten.optim.muon import Muon
from hasten.optim.novograd import Novograd
from tests.optim.textbook import network, set_gradients, spoil_gradients

RATE = 0.02
LAYOUTS = [torch.contiguous_format, torch.channels_last_3d]


def muon(net: nn.Module, lr: Any = RATE) -> Muon:
    return Muon(net.parameters(), lr=lr, transposed=transposed_filters(net), weight_decay=0.1)


MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "novograd": lambda net, lr=RATE: Novograd(param_groups(net, weight_decay=0.1), lr=lr),
    "novograd, averaged": lambda net, lr=RATE: Novograd(net.parameters(), lr, grad_averaging=True, amsgrad=True),
    "lamb": lambda net, lr=RATE: Lamb(param_groups(net, weight_decay=0.1), lr=lr),
    "nvlamb": lambda net, lr=RATE: Lamb(param_groups(net, weight_decay=0.1), lr=lr, nvlamb=True),
    "lars": lambda net, lr=RATE: Lars(param_groups(net, weight_decay=0.1), lr=lr, trust=0.1),
    "muon": muon,
}
ALL = pytest.mark.parametrize("name", MAKERS)


def masked(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """As on a GPU: no value is read."""
    if hasattr(optimizer, "_reads_on_cpu"):
        optimizer._reads_on_cpu = False
    return optimizer


def amp_step(optimizer: torch.optim.Optimizer, *, scale: float | None, overflow: float) -> None:
    optimizer.grad_scale = None if scale is None else torch.tensor(scale)  # type: ignore[attr-defined]
    optimizer.found_inf = torch.tensor(overflow)  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]


def everything(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Copies of the weights and of every tensor in the optimizer's state_dict."""
    results = [parameter.detach().clone() for parameter in net.parameters()]

    def walk(value: Any) -> None:
        if isinstance(value, Tensor):
            results.append(value.clone())
        for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(child)

    walk(optimizer.state_dict())
    return results


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(left, right) and torch.equal(left.signbit(), right.signbit())
        for left, right in zip(one, other, strict=True)
    )


@ALL
@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("scale", [None, 128.0])
def test_a_skipped_step_changes_nothing(
    name: str, on_gpu: bool, layout: torch.memory_format, scale: float | None
) -> None:
    net = network(layout)
    with torch.no_grad():
        net[3].weight[0, 0, 0, 0, :2] = torch.tensor([0.0, -0.0])  # type: ignore[index, operator, union-attr]
    optimizer = MAKERS[name](net)
    if on_gpu:
        masked(optimizer)
    for step in range(5):
        set_gradients(net, step)
        optimizer.step()
    before = everything(net, optimizer)
    for result in (1.0, 2.0):
        set_gradients(net, 9)
        spoil_gradients(net)
        amp_step(optimizer, scale=scale, overflow=result)
    assert same(before, everything(net, optimizer))
    assert all(each.isfinite().all() for each in before)
    set_gradients(net, 10)
    amp_step(optimizer, scale=None, overflow=0.0)
    assert not same(before, everything(net, optimizer))


@ALL
@pytest.mark.parametrize("on_gpu", [False, True])
def test_scaled_gradients_make_the_unscaled_step(name: str, on_gpu: bool) -> None:
    net, other = network(), network()
    one, two = MAKERS[name](net), MAKERS[name](other)
    if on_gpu:
        masked(one)
    for step in range(6):
        set_gradients(net, step, scale=1024.0)
        set_gradients(other, step)
        amp_step(one, scale=1024.0, overflow=0.0)
        two.step()
    for result, wanted in zip(everything(net, one), everything(other, two), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-4, atol=1e-5)


@ALL
def test_a_grad_scaler_leaves_out_a_broken_step(name: str) -> None:
    net, other = network(), network()
    one, two = MAKERS[name](net), MAKERS[name](other)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(5):
        scaler.scale(torch.zeros(()))
        factor = scaler.get_scale()
        set_gradients(net, step, scale=factor)
        if step == 2:
            spoil_gradients(net)
        else:
            set_gradients(other, step)
            two.step()
        scaler.step(one)
        scaler.update()
    assert scaler.get_scale() == 128.0
    for result, wanted in zip(everything(net, one), everything(other, two), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-4, atol=1e-5)


@ALL
@pytest.mark.parametrize("layout", LAYOUTS)
def test_resuming_is_exact(name: str, layout: torch.memory_format) -> None:
    net, other = network(layout), network(layout, seed=1)
    one, two = MAKERS[name](net), MAKERS[name](other, lr=0.5)
    for step in range(5):
        set_gradients(net, step, missing=True)
        one.step()
    file = io.BytesIO()
    torch.save({"network": net.state_dict(), "optimizer": one.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other.load_state_dict(loaded["network"])
    two.load_state_dict(loaded["optimizer"])
    for step in range(5, 12):
        for each, optimizer in ((net, one), (other, two)):
            set_gradients(each, step, missing=True)
            optimizer.step()
    assert same(everything(net, one), everything(other, two))


@ALL
@pytest.mark.parametrize("on_gpu", [False, True])
def test_a_rate_may_be_a_tensor(name: str, on_gpu: bool) -> None:
    net, other = network(), network()
    one, two = MAKERS[name](net), MAKERS[name](other, lr=torch.tensor(RATE))
    if on_gpu:
        masked(one)
        masked(two)
    for step in range(5):
        for each, optimizer in ((net, one), (other, two)):
            set_gradients(each, step)
            amp_step(optimizer, scale=None, overflow=0.0)
    for result, wanted in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=1e-5, atol=1e-6)
    assert all(isinstance(group["lr"], Tensor) for group in two.param_groups)


@ALL
@pytest.mark.parametrize("on_gpu", [False, True])
def test_both_ways_agree_in_either_memory_format(name: str, on_gpu: bool) -> None:
    plain, last = network(), network(torch.channels_last_3d)
    one, two = MAKERS[name](plain), MAKERS[name](last)
    if on_gpu:
        masked(two)
    for step in range(12):
        for each, optimizer in ((plain, one), (last, two)):
            set_gradients(each, step, missing=True)
            optimizer.step()
    for result, wanted in zip(last.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=2e-4, atol=2e-5)
    for parameter, state in two.state.items():
        for value in state.values():
            assert value.ndim == 0 or value.stride() == parameter.stride()


@ALL
def test_a_change_of_memory_format_is_followed(name: str) -> None:
    net, other = network(), network()
    one, two = MAKERS[name](net), MAKERS[name](other)
    for step in range(8):
        if step == 4:
            net.to(memory_format=torch.channels_last_3d)  # type: ignore[call-overload]
        for each, optimizer in ((net, one), (other, two)):
            set_gradients(each, step)
            optimizer.step()
    for result, wanted in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.allclose(result, wanted, rtol=2e-4, atol=2e-5)


@ALL
def test_a_closure_is_called_with_gradients_on(name: str) -> None:
    net = network()
    optimizer = MAKERS[name](net)

    def closure() -> Tensor:
        assert torch.is_grad_enabled()
        set_gradients(net, 3)
        return torch.tensor(4.0)

    start = [parameter.detach().clone() for parameter in net.parameters()]
    assert optimizer.step(closure) == 4.0
    assert not same(start, [parameter.detach() for parameter in net.parameters()])


@ALL
def test_weights_that_do_not_fill_their_memory_are_refused(name: str) -> None:
    net = network()
    for parameter in net.parameters():
        parameter.data = torch.stack([parameter.data, parameter.data], -1)[..., 0]
    set_gradients(net, 0)
    with pytest.raises(ValueError, match="does not fill its memory"):
        MAKERS[name](net).step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: Novograd(p, lr=-1.0), "lr is -1"),
        (lambda p: Novograd(p, betas=(1.0, 0.5)), r"betas\[0\] is 1"),
        (lambda p: Lars(p, momentum=1.0), "momentum is 1"),
    ],
)
def test_impossible_numbers_are_named(make: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make([nn.Parameter(torch.zeros(2))])


def test_an_update_does_not_import_torchs_compiler() -> None:
    code = """if True:
        import sys, torch
        from hasten.optim.muon import Muon
        network = torch.nn.Conv3d(8, 8, 3)
        optimizer = Muon(network.parameters(), lr=0.01)
        optimizer.zero_grad()
        network(torch.ones(1, 8, 3, 3, 3)).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        print("torch._dynamo" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "False"
