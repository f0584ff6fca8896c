"""DDP's own settings, on two ranks that are started once; that it is one process is the contract's."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def ranks(pair: list[Any]) -> list[Any]:
    return [rank["ddp"] for rank in pair]


@pytest.mark.slow
def test_buckets_are_sent_beside_the_backward_pass(ranks: list[Any]) -> None:
    *sent, gradients = ranks[0]["beside"]
    assert len(sent) > 2
    assert sent[0] < gradients
    assert sent == sorted(sent)


def test_larger_buckets_are_fewer(ranks: list[Any]) -> None:
    assert len(ranks[0]["large"]) < len(ranks[0]["beside"])


def test_one_rank_names_the_parameters_that_the_loss_does_not_use(ranks: list[Any]) -> None:
    assert "spare.weight, spare.bias" in ranks[0]["unused"]
    assert "requires_grad" in ranks[0]["unused"]
    assert ranks[1]["unused"].startswith("OtherRankFailed")


@pytest.mark.parametrize(("gradients", "tolerance"), [("fp16", 2e-4), ("bf16", 2e-3)])
def test_gradients_travel_in_16_bits(ranks: list[Any], gradients: str, tolerance: float) -> None:
    result = ranks[0][gradients]
    assert result["agree"]
    # Not as in float32: or nothing was rounded.
    assert 1e-6 < result["weights"] < tolerance


def test_without_sync_norm_moments_are_a_ranks_own_and_the_first_ones_are_saved(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["own_norms"]["weights"]
        assert not rank["own_norms"]["moments"]
    assert ranks[0]["own_norms"]["own"] == 0


def test_rank_0_gives_its_weights_in_few_messages(ranks: list[Any]) -> None:
    for rank in ranks:
        result = rank["given"]
        assert not result["before"]
        assert result["after"]
        assert result["of_first"]
        assert result["format"]
        # One for each of three types and for each batch of 64 MiB.
        assert 0 < result["messages"] < result["tensors"] / 4


def test_channels_last_lasts(ranks: list[Any]) -> None:
    result = ranks[0]["channels_last"]
    assert result["weights"]
    assert result["gradients"]
    assert result["looked"] > 0
    assert result["difference"] < 1e-8
