from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from monai.optimizers import LearningRateFinder
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from hasten.optim.lr_finder import range_test, rising
from hasten.optim.muon import Muon
from tests.optim.test_base import everything, same


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.PReLU(), nn.Linear(16, 1))


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, rates: list[float]) -> Callable[[int], Tensor]:
    def step(index: int) -> Tensor:
        rates.append(float(optimizer.param_groups[0]["lr"]))
        random.random()
        np.random.rand()  # noqa: NPY002
        image = torch.randn(8, 6)
        optimizer.zero_grad()
        loss = (net(image) - image.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9),
    "adamw, tensor rate": lambda net: torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), fused=True),
    "muon": lambda net: Muon(net.parameters(), lr=0.01),
}


def _chance() -> list[Any]:
    return [random.random(), np.random.rand(), torch.rand(3).tolist()]  # noqa: NPY002


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("trained", [0, 3])
def test_everything_is_as_before(name: str, trained: int) -> None:
    net = _network()
    net[2].eval()  # type: ignore[index, operator]
    optimizer = OPTIMIZERS[name](net)
    rates: list[float] = []
    step = _step(net, optimizer, rates)
    for index in range(trained):
        step(index)
    before = everything(net, optimizer)
    buffers = [each.clone() for each in net.buffers()]
    gradients = [None if each.grad is None else each.grad.clone() for each in net.parameters()]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    kept, chance = copy.deepcopy(groups), (random.getstate(), np.random.get_state(), torch.get_rng_state())  # noqa: NPY002
    wanted = _chance()
    random.setstate(chance[0])
    np.random.set_state(chance[1])  # noqa: NPY002
    torch.set_rng_state(chance[2])

    result = range_test(step, net, optimizer, start=1e-4, end=0.1, steps=12)
    assert rates[trained:] == pytest.approx([*result.rates])
    assert _chance() == wanted
    assert same(before, everything(net, optimizer))
    assert same(buffers, list(net.buffers()))
    for gradient, parameter in zip(gradients, net.parameters(), strict=True):
        assert (gradient is None) == (parameter.grad is None)
        assert gradient is None or torch.equal(gradient, parameter.grad)  # type: ignore[arg-type]
    for group, wants, old in zip(optimizer.param_groups, kept, groups, strict=True):
        assert {key: value for key, value in group.items() if key != "params"} == wants
        assert not isinstance(old["lr"], Tensor) or group["lr"] is old["lr"]
    assert [module.training for module in net.modules()] == [True, True, True, False, True, True]


def test_a_step_that_raises_leaves_no_trace() -> None:
    net = _network()
    optimizer = OPTIMIZERS["sgd"](net)
    step = _step(net, optimizer, [])

    def broken(index: int) -> Tensor:
        if index == 4:
            raise RuntimeError("out of memory")
        return step(index)

    before = everything(net, optimizer)
    with pytest.raises(RuntimeError, match="out of memory"):
        range_test(broken, net, optimizer)
    assert same(before, everything(net, optimizer))


class Count:
    def __init__(self) -> None:
        self.steps = 5

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.steps = state_dict["steps"]


def test_further_states_are_restored() -> None:
    net, count = _network(), Count()
    optimizer = OPTIMIZERS["sgd"](net)

    def step(index: int) -> float:
        count.steps += 1
        return 1.0 / (1 + index)

    range_test(step, net, optimizer, steps=5, also=[count])
    assert count.steps == 5


def _losses(values: list[float], **more: Any) -> Any:
    net = nn.Linear(1, 1)
    return range_test(
        lambda index: values[index], net, torch.optim.SGD(net.parameters(), lr=1.0), start=1e-4, end=1.0, steps=9,
        smoothing=1.0, **more,
    )  # fmt: skip


def test_suggestions_by_hand() -> None:
    result = _losses([5.0, 5.0, 4.9, 4.5, 2.0, 1.0, 0.9, 3.0, 4.0])
    rate = rising(start=1e-4, end=1.0, steps=9)
    assert result.rates == pytest.approx([1e-4 * 10 ** (step / 2) for step in range(9)])
    assert result.steepest == rate(4)
    assert result.tenth == pytest.approx(rate(6) / 10)
    assert not result.diverged
    # A fall after the minimum is noise of a broken network.
    assert _losses([5.0, 4.0, 1.0, 4.9, 4.8, 4.0, 3.0, 1.1, 1.2]).steepest in (rate(0), rate(1))


def test_it_stops_where_the_loss_breaks_out() -> None:
    result = _losses([5.0, 4.0, 1.0, 2.0, 5.1, 9.0, 9.0, 9.0, 9.0])
    assert result.diverged
    assert result.losses == (5.0, 4.0, 1.0, 2.0, 5.1)
    result = _losses([5.0, 4.0, 1.0, float("nan"), 1.0, 1.0, 1.0, 1.0, 1.0])
    assert result.diverged
    assert len(result.losses) == len(result.rates) == 4
    assert len(result.smoothed) == 3
    # A loss below 0 (a Dice of which something is subtracted) is judged by its distance from the best.
    assert not _losses([-1.0, -2.0, -2.0, -3.0, -1.0, 0.0, 1.0, 2.0, 8.0]).diverged
    assert len(_losses([-1.0, -2.0, -2.0, -3.0, 10.0, 0.0, 0.0, 0.0, 0.0]).losses) == 5
    with pytest.raises(ValueError, match=r"finite for 1 steps from a learning rate of 0.0001"):
        _losses([5.0, float("inf"), 0, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"start": 0.0}, "0 < start < end"), ({"start": 2.0}, "0 < start < end"), ({"steps": 2}, "at least 3"),
        ({"smoothing": 0.0}, "smoothing is 0"), ({"divergence": 1.0}, "divergence is 1"),
    ],
)  # fmt: skip
def test_impossible_numbers_are_named(wrong: dict[str, Any], message: str) -> None:
    net = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=message):
        range_test(lambda index: 1.0, net, torch.optim.SGD(net.parameters(), lr=1.0), **wrong)


def test_it_sees_what_monais_finder_sees() -> None:
    torch.manual_seed(3)
    images = torch.randn(64, 6)
    data = DataLoader(TensorDataset(images, images.sum(1, keepdim=True)), batch_size=8)
    criterion = nn.MSELoss()
    torch.manual_seed(0)
    net = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    other = copy.deepcopy(net)
    finder = LearningRateFinder(
        other, torch.optim.SGD(other.parameters(), lr=1e-3), criterion, device="cpu", verbose=False
    )
    finder.range_test(data, start_lr=1e-3, end_lr=10.0, num_iter=40)

    batches = [batch for _ in range(6) for batch in data]

    def step(index: int) -> Tensor:
        image, target = batches[index]
        optimizer.zero_grad()
        loss = criterion(net(image), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    result = range_test(step, net, optimizer, start=1e-3, end=10.0, steps=40, smoothing=0.05)
    assert result.diverged == (len(finder.history["loss"]) < 40)
    assert list(result.smoothed) == pytest.approx(finder.history["loss"], rel=1e-5)
    assert result.steepest == pytest.approx(finder.get_steepest_gradient()[0])
