"""Local SGD on two ranks that are started once: the method as written down, its messages, what is saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hasten.config.schema import DistributeConfig, RunConfig
from hasten.distribute.local_sgd import LocalSgd
from hasten.distribute.world import World


@pytest.fixture(scope="module")
def ranks(pair: list[Any]) -> list[Any]:
    return [rank["local_sgd"] for rank in pair]


def test_it_is_the_method_played_by_one_process(ranks: list[Any]) -> None:
    result = ranks[0]["method"]
    assert result["7"] < 1e-12
    assert result["8"] < 1e-12
    # What a rank did while the mean was under way is its own.
    assert not result["7 agree"]
    assert result["spread"] < 0.5


def test_it_sends_once_in_so_many_steps_and_waits_before_the_next_time(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["messages"]["3"] == ["", "", "begin", "", "wait", "begin", "", "wait"]
        assert rank["messages"]["1"] == ["begin wait"] * 8


def test_validation_sees_the_mean_on_all_ranks_and_changes_nothing(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["validated"]["agreed"]
        assert rank["validated"]["means"] < 1e-12
        assert rank["validated"]["training is the same"]


@pytest.mark.parametrize("name", ["saved", "saved_batch_norm", "saved_lookahead"])
def test_a_checkpoint_holds_the_means_and_the_run_goes_on_from_them(ranks: list[Any], name: str) -> None:
    for rank in ranks:
        result = rank[name]
        assert result["agree"]
        assert result["live"]
        assert result["apart"] > 1e-4, "the ranks' moments were the same before"
        assert result["moments"] < 1e-12
        assert result.get("buffers", 0.0) < 1e-12
        assert result["resumed"] == 0
        assert result["single"] == 0
    assert ("buffers" in ranks[0][name]) == (name == "saved_batch_norm")


def test_channels_last_lasts(ranks: list[Any]) -> None:
    assert ranks[0]["channels_last"]["kept"]
    assert ranks[0]["channels_last"]["difference"] < 1e-8


def test_what_needs_the_link_at_every_step_is_refused() -> None:
    distribute = DistributeConfig(strategy="local_sgd")
    config = RunConfig(distribute=distribute)
    strategy = LocalSgd(World(size=2), distribute)
    assert strategy.mistakes(config) == []
    wrong = replace(config, distribute=replace(distribute, sync_norm=True, gradients="fp16"))
    assert [mistake.split(":")[0] for mistake in strategy.mistakes(wrong)] == [
        "distribute.sync_norm",
        "distribute.gradients",
    ]
