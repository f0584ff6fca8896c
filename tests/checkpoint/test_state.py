from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from hasten.checkpoint.file import Checkpoints, read_checkpoint, write_checkpoint
from hasten.checkpoint.saver import Saver
from hasten.checkpoint.state import restore_state, training_state
from hasten.optim.muon import Muon
from tests.training.runs import assert_equal

STEPS = 12
OPTIMIZERS = {
    "adamw": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9, nesterov=True),
    "muon": partial(Muon, lr=0.01),
}


class Own:
    """A user's loop: own data with a position, dropout, batch norm, an average, a schedule, loss scaling, counters."""

    def __init__(self, optimizer: str = "adamw", *, seed: int = 0, last: bool = False) -> None:
        torch.manual_seed(seed)
        # Wide enough for Muon's matrices.
        layers = [
            nn.Conv2d(1, 8, 3),
            nn.BatchNorm2d(8),
            nn.PReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3),
            nn.Conv2d(8, 2, 1),
        ]
        layout = torch.channels_last if last else torch.contiguous_format
        self.network = nn.Sequential(*layers).to(memory_format=layout)  # type: ignore[call-overload]
        keep = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self.average = torch.optim.swa_utils.AveragedModel(self.network, multi_avg_fn=keep, use_buffers=True)
        self.optimizer = OPTIMIZERS[optimizer](self.network.parameters())
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.01, STEPS, cycle_momentum=False)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        self.order = torch.Generator().manual_seed(seed + 5)
        self.queue: list[int] = []
        self.seen: dict[str, int] = {}
        self.done = 0

    def batch(self) -> torch.Tensor:
        """Shuffled cases, one after another, with noise from torch's generator."""
        if not self.queue:
            self.queue = torch.randperm(5, generator=self.order).tolist()
        case = self.queue.pop()
        self.seen[str(case)] = self.seen.get(str(case), 0) + 1
        image = torch.randn(2, 1, 9, 9, generator=torch.Generator().manual_seed(case))
        return image + 0.1 * torch.randn(image.shape)

    def step(self) -> None:
        image = self.batch()
        scores = self.network(image)
        if self.done == 4:
            scores = scores * float("inf")  # a step that the scaler leaves out
        loss = functional.cross_entropy(scores, (image[:, 0, 2:-2, 2:-2] > 0).long())
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.network)
        self.done += 1

    def parts(self) -> dict[str, Any]:
        names = ("network", "optimizer", "average", "scaler", "schedule")
        return {name: getattr(self, name) for name in names}

    def state(self) -> dict[str, Any]:
        extra = {"order": self.order.get_state(), "queue": self.queue, "seen": self.seen}
        return training_state(**self.parts(), step=self.done, extra=extra)

    def restore(self, state: dict[str, Any]) -> None:
        self.done = restore_state(state, **self.parts())
        self.order.set_state(state["extra"]["order"])
        self.queue, self.seen = state["extra"]["queue"], state["extra"]["seen"]

    def train(self, folder: Path, *, die_in: int = 0) -> dict[str, Any]:
        """To the end from the newest checkpoint, with one after every other step."""
        checkpoints = Checkpoints(folder)
        result = checkpoints.newest()
        if result is not None:
            self.restore(result)
        with Saver() as saver:
            while self.done < STEPS:
                self.step()
                if self.done == die_in:
                    raise Died
                if self.done % 2 == 0:
                    saver.save(self.state(), checkpoints.write)
        return self.state()


class Died(Exception):
    pass


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_resumed_equals_uninterrupted(tmp_path: Path, optimizer: str) -> None:
    """All of the state: an infinite step lies before two of the stops, and grown scales, and ends of epochs."""
    whole = Own(optimizer).train(tmp_path / "whole")
    for stop in (3, 7, 12):
        with pytest.raises(Died):
            Own(optimizer, seed=stop if stop > 3 else 0).train(tmp_path / "cut", die_in=stop)
        torch.manual_seed(99)  # the next process begins with another state
    assert_equal(Own(optimizer, seed=8).train(tmp_path / "cut"), whole)
    assert_equal(read_checkpoint(tmp_path / "cut/last.pt"), read_checkpoint(tmp_path / "whole/last.pt"))


def trained(optimizer: str = "adamw", *, last: bool = False) -> Own:
    own = Own(optimizer, last=last)
    for _ in range(3):
        own.step()
    return own


def saved(own: Own, tmp_path: Path) -> dict[str, Any]:
    write_checkpoint(tmp_path / "x.pt", own.state())
    return read_checkpoint(tmp_path / "x.pt")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("last", [False, True])
def test_moments_take_the_memory_format_that_the_weights_have(tmp_path: Path, optimizer: str, last: bool) -> None:
    own = trained(optimizer, last=not last)
    here = Own(optimizer, last=last)
    here.restore(saved(own, tmp_path))
    for parameter, values in getattr(here.optimizer, "inner", here.optimizer).state.items():
        moments = [value for value in values.values() if value is not None and value.shape == parameter.shape]
        assert moments
        assert all(moment.stride() == parameter.stride() for moment in moments)
    one, other = (each.optimizer.state_dict()["state"] for each in (own, here))
    for number, values in one.items():
        for name, value in values.items():
            assert value is None or torch.equal(value, other[number][name])


def test_a_learning_rate_that_a_captured_step_reads_stays_the_same_tensor(tmp_path: Path) -> None:
    def made(rate: float) -> tuple[nn.Module, torch.optim.Optimizer]:
        network = nn.Linear(2, 2)
        return network, torch.optim.AdamW(network.parameters(), lr=torch.tensor(rate), fused=True)

    network, optimizer = made(0.25)
    write_checkpoint(tmp_path / "x.pt", training_state(network=network, optimizer=optimizer, step=1))
    network, optimizer = made(0.5)
    rate = optimizer.param_groups[0]["lr"]
    restore_state(read_checkpoint(tmp_path / "x.pt"), network=network, optimizer=optimizer)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25
    plain = torch.optim.AdamW(network.parameters(), lr=0.5, fused=True)
    restore_state(read_checkpoint(tmp_path / "x.pt"), network=network, optimizer=plain)
    assert plain.param_groups[0]["lr"] == 0.25
    assert isinstance(plain.param_groups[0]["lr"], float)


def refused(own: Own, state: dict[str, Any], match: str) -> None:
    """With a message of one line, and nothing changed."""
    before = own.state()
    before = {**before, "network": {name: value.clone() for name, value in before["network"].items()}}
    with pytest.raises(ValueError, match=match) as error:
        own.restore(state)
    assert "\n" not in str(error.value)
    assert_equal(dict(own.state()["network"]), before["network"])


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    state = saved(trained(), tmp_path)
    refused(Own("sgd", seed=7), state, "saved with the optimizer AdamW, and this run has SGD")
    own = Own(seed=7)
    own.network = nn.Sequential(*own.network, nn.Conv2d(2, 2, 1))
    refused(own, state, r"another kind \(2 weights missing: 6\.weight, 6\.bias\)")
    own = Own(seed=7)
    own.average = nn.Sequential(own.average, nn.Conv2d(2, 2, 1))  # type: ignore[assignment]
    refused(own, state, "average of another kind")
    own = Own(seed=7)
    own.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    refused(own, state, r"groups had \[9\] parameters, and here they have \[9, 1\]")
    own = Own(seed=7)
    own.optimizer.param_groups[0]["params"].pop()
    refused(own, state, r"groups had \[9\] parameters, and here they have \[8\]")
    refused(Own(seed=7), {**state, "scaler": {}}, "saved without loss scaling")
