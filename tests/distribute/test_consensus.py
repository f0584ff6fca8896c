"""Agreement of two ranks: one of them tells what is wrong, and both end."""

from __future__ import annotations

from typing import Any

import pytest

from hasten.distribute import consensus
from hasten.distribute.consensus import (
    broadcast_from_rank0,
    local_rank0_first,
    require_same,
    run_on_all_ranks,
    run_on_rank0,
)
from hasten.distribute.world import World

SILENT = "OtherRankFailed: 2"


@pytest.fixture(scope="module")
def ranks(pair: list[Any]) -> list[Any]:
    return [rank["agree"] for rank in pair]


def test_each_gets_its_own_value(ranks: list[Any]) -> None:
    assert [rank["values"] for rank in ranks] == [0, 1]


def test_the_error_of_one_rank_is_told_by_it_and_ends_all(ranks: list[Any]) -> None:
    assert ranks[0]["one fails"] == SILENT
    assert ranks[1]["one fails"] == "JobError: second (on rank 1 of 2 on node1; 1 of 2 ranks failed)"


def test_the_error_of_all_is_told_once(ranks: list[Any]) -> None:
    assert [rank["all fail"] for rank in ranks] == ["JobError: of rank 0", SILENT]


def test_all_get_the_value_of_the_first(ranks: list[Any]) -> None:
    assert [rank["from first"] for rank in ranks] == [{"a": 1}] * 2


def test_what_differs_is_named_with_its_rank_and_host(ranks: list[Any]) -> None:
    assert [rank["same"] for rank in ranks] == ["", ""]
    assert ranks[1]["differing"] == SILENT
    message = ranks[0]["differing"]
    for part in ("JobError: data hash: ", "rank 1 on node1 has 8", "rank 0 on node0 has 7", "give all nodes the same"):
        assert part in message


def test_a_fact_that_the_first_does_not_know_differs_too(ranks: list[Any]) -> None:
    assert ranks[1]["extra"] == SILENT
    assert "more: rank 1 on node1 has 1, and rank 0 on node0 has None" in ranks[0]["extra"]


def test_the_first_of_a_host_goes_before_the_others(ranks: list[Any]) -> None:
    assert [rank["was there"] for rank in ranks] == [False, True]
    # Where it fails the others are not kept waiting.
    assert ranks[0]["first fails"][0] == "ValueError: no room"
    assert ranks[1]["first fails"] == ["", True]


def test_a_rank_that_nobody_hears_tells_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(consensus, "_gather", gone)
    with pytest.raises(ValueError, match="mine"):
        run_on_all_ranks(World(size=2), lambda: (_ for _ in ()).throw(ValueError("mine")))
    with pytest.raises(RuntimeError, match="closed by peer"):
        run_on_all_ranks(World(size=2), lambda: None)


def test_one_process_asks_nobody() -> None:
    world = World()
    assert run_on_all_ranks(world, lambda: 3) == 3
    assert broadcast_from_rank0(world, "a") == "a"
    require_same(world, {"code": 1})
    assert run_on_rank0(world, lambda: 3) == 3
    with local_rank0_first(world, None):
        pass
    with pytest.raises(ValueError, match=r"^plain$"):
        run_on_all_ranks(world, lambda: (_ for _ in ()).throw(ValueError("plain")))
