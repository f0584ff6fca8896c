"""DataParallel: what it says, and what it does where there is nothing to split over."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from hasten.config.schema import DistributeConfig, RunConfig, TrainConfig
from hasten.distribute.build_strategy import build_strategy
from hasten.distribute.dp import Dp
from hasten.distribute.world import World

CONFIG = RunConfig(distribute=DistributeConfig(strategy="dp"))


def made(world: World | None = None) -> Dp:
    strategy = build_strategy(CONFIG.distribute, world or World())
    assert isinstance(strategy, Dp)
    return strategy


def test_on_a_cpu_it_says_that_it_is_single(caplog: pytest.LogCaptureFixture) -> None:
    network = nn.Linear(2, 2)
    with caplog.at_level(logging.WARNING):
        assert made().wrap(network) is network
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "nothing to split a batch over on cpu" in caplog.text


class OnGpu(nn.Module):
    """Says that it lies on the second of the GPUs."""

    def parameters(self, recurse: bool = True) -> Any:
        return iter([type("Weight", (), {"device": torch.device("cuda", 1)})()])


def test_several_gpus_are_used_from_its_own_first_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(nn, "DataParallel", lambda network, device_ids: given.append((network, device_ids)) or network)
    network = OnGpu()
    with caplog.at_level(logging.WARNING):
        made().wrap(network)
    assert given == [(network, [1, 0, 2])]
    [record] = caplog.records
    for word in ("copies the network to 3 GPUs", "through cuda:1", "one Python interpreter", "ddp"):
        assert word in record.getMessage()


def test_what_threads_cannot_share_is_refused() -> None:
    assert made().mistakes(CONFIG) == []
    [mistake] = Dp(World(size=4), CONFIG.distribute).mistakes(CONFIG)
    assert mistake.startswith("distribute.strategy: dp is one process")
    compiled = replace(CONFIG, train=TrainConfig(compile=True, capture=True))
    assert [mistake.split(":")[0] for mistake in made().mistakes(compiled)] == ["train.compile", "train.capture"]
    synced = replace(CONFIG, distribute=DistributeConfig(strategy="dp", sync_norm=True))
    assert [mistake.split(":")[0] for mistake in made().mistakes(synced)] == ["distribute.sync_norm"]
