"""ZeRO-1 against DDP, bit for bit, on ranks that are started once; that it is one process is the contract's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distribute.ranks import run_ranks
from tests.distribute.zero1_checks import OPTIMIZERS

WORLDS = [2, pytest.param(3, marks=pytest.mark.slow)]
RUNS = [*OPTIMIZERS, "fp16", "by hand", "few muon", "few nvlamb", "few adamw"]


@pytest.fixture(scope="module", params=WORLDS, ids=lambda world: f"{world} ranks")
def ranks(request: pytest.FixtureRequest) -> list[Any]:
    return run_ranks("tests.distribute.zero1_checks", request.param, timeout_s=600)


@pytest.mark.parametrize("run", RUNS)
def test_weights_are_those_of_ddp_bit_for_bit(ranks: list[Any], run: str) -> None:
    """At a rate of its own for each step, one of which is skipped, and after a state was moved to other ranks."""
    for rank in ranks:
        result = rank["runs"][run]
        assert {name: result[name] for name in ("weights", "later", "moved")} == dict.fromkeys(
            ("weights", "later", "moved"), ""
        )
        assert result["agree"]


@pytest.mark.parametrize("run", RUNS)
def test_the_gathered_state_is_that_of_one_optimizer(ranks: list[Any], run: str) -> None:
    """In numbers, names, order and memory format, also after it was taken up."""
    result = ranks[0]["runs"][run]
    assert (result["state"], result["end"]) == ("", "")


@pytest.mark.parametrize("run", RUNS)
def test_each_rank_keeps_its_share_of_the_moments(ranks: list[Any], run: str) -> None:
    shares = [rank["runs"][run]["share"] for rank in ranks]
    # A little is each rank's own: Muon's count of steps, say.
    assert sum(shares) == pytest.approx(1.0, abs=0.01)
    if run.startswith("few"):
        assert shares[1:] == [0.0] * (len(ranks) - 1)
    else:
        # No parameter is cut; and Muon keeps one moment for its filters and two for the rest.
        assert max(shares) < 1.3 / len(ranks)


def test_it_compiles_as_ddp_does(ranks: list[Any]) -> None:
    assert [rank["compiled"] for rank in ranks] == [""] * len(ranks)


def test_a_state_of_other_groups_is_refused(ranks: list[Any]) -> None:
    for rank in ranks:
        assert "groups of [1, 1] parameters" in rank["refused"]
