"""Every strategy through the contract of tests/contracts/strategies.py: ranks are started once for all of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.distribute.world import World
from tests.contracts.strategies import CASES, EXACT, STRATEGIES, TOLERANCE, Row, run_all
from tests.distribute.ranks import run_ranks

Started = Callable[[Row, int], dict[str, Any]]
_FAST = 2
"""Ranks of the fast tests; a strategy that has only one process is tested with that."""
_OWN_TESTS = ("fsdp", "pipeline")
"""Their own files compare them with one process, too: here they are slow tests."""
JOBS = [
    pytest.param(
        row,
        world,
        id=f"{row.name}-{world}",
        marks=[pytest.mark.slow] if world > _FAST or row.name in _OWN_TESTS else [],
    )
    for row in STRATEGIES
    for world in row.worlds
]
EQUAL = ("weights", "average", "whole", "moments", "losses", "norms")
_TIMEOUT_S = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def started(folder: Path) -> Started:
    """Findings of a strategy on so many ranks, from the one time that it is started."""
    known: dict[tuple[str, int], dict[str, Any]] = {}

    def findings(row: Row, world: int) -> dict[str, Any]:
        _require(row)
        key = (row.name, world)
        if key not in known:
            # What failed once is not started for every test.
            known[key] = {}
            if world == 1:
                # As the ranks: tiny networks are slower on several.
                threads = torch.get_num_threads()
                torch.set_num_threads(1)
                try:
                    known[key] = run_all(row, World(), folder)
                finally:
                    torch.set_num_threads(threads)
            else:
                known[key] = run_ranks("tests.contracts.strategies", world, row.name, folder, timeout_s=_TIMEOUT_S)[0]
        assert known[key], f"{row.name} on {world} ranks has failed before"
        return known[key]

    return findings


def _require(row: Row) -> None:
    if row.needs and importlib.util.find_spec(row.needs) is None:
        pytest.skip(f"{row.needs} is not installed")


def _kept(row: Row, result: dict[str, Any], case: str) -> dict[str, Any]:
    if case in row.differs:
        pytest.skip(row.differs[case])
    return {
        name: value
        for name, value in result[case].items()
        if name not in row.differs and f"{case}.{name}" not in row.differs
    }


@pytest.mark.parametrize(("row", "world"), JOBS)
@pytest.mark.parametrize("case", CASES)
def test_it_is_one_process_with_the_whole_batch(row: Row, world: int, case: str, started: Started) -> None:
    """Weights (with plain SGD at rate 1: gradients), their average, moments, losses and the gradient's norm."""
    result = _kept(row, started(row, world), case)
    tolerance = TOLERANCE.get(case, EXACT)
    wrong = {name: result[name] for name in EQUAL if name in result and not result[name] <= tolerance}
    assert not wrong
    assert result["learned"] > 100 * tolerance, "the case shows nothing: the weights did not move"


@pytest.mark.parametrize(("row", "world"), JOBS)
def test_ranks_agree_bit_for_bit(row: Row, world: int, started: Started) -> None:
    """Although their losses differ."""
    result = started(row, world)
    for case in CASES:
        if case not in row.differs and f"{case}.agree" not in row.differs:
            assert result[case]["agree"], case
    if "gradient.losses_differ" not in row.differs:
        assert result["gradient"]["losses_differ"]


@pytest.mark.parametrize(("row", "world"), JOBS)
def test_clipping_bites(row: Row, world: int, started: Started) -> None:
    assert _kept(row, started(row, world), "clipped")["bites"] == CASES["clipped"].steps


@pytest.mark.parametrize(("row", "world"), JOBS)
def test_only_the_last_piece_of_a_batch_is_exchanged(row: Row, world: int, started: Started) -> None:
    result = _kept(row, started(row, world), "accumulated")
    if "exchanges" not in result:
        pytest.skip(row.differs["accumulated.exchanges"])
    assert result["exchanges"]["2"] == result["exchanges"]["1"]
    assert (result["exchanges"]["1"] > 0) == (world > 1), "nothing was counted"


@pytest.mark.parametrize(("row", "world"), JOBS)
def test_a_state_moves_to_one_process_and_back(row: Row, world: int, started: Started) -> None:
    """And so from any strategy and number of ranks to any other, as one process's state is what all write and read."""
    result = _kept(row, started(row, world), "moved")
    assert set(result) >= {"undisturbed", "to_single", "to_itself", "from_single"}
    assert {name: value for name, value in result.items() if not value <= EXACT} == {}


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("row", [pytest.param(row, id=row.name) for row in STRATEGIES if "moved" not in row.differs])
def test_a_state_of_every_strategy_is_taken_up_by_every_other(
    row: Row, world: int, folder: Path, started: Started
) -> None:
    if world not in row.worlds:
        pytest.skip(f"{row.name} is for {row.worlds} processes")
    others = []
    for other in STRATEGIES:
        for size in other.worlds:
            if "moved" not in other.differs and (not other.needs or importlib.util.find_spec(other.needs)):
                started(other, size)
                others.append(folder / f"{other.name}-{size}.pt")
    _require(row)
    result = run_ranks("tests.contracts.strategies", world, "moved", row.name, folder, *others, timeout_s=_TIMEOUT_S)[0]
    assert set(result) >= {f"from_{other.stem}" for other in others}
    assert {name: value for name, value in result.items() if not value <= EXACT} == {}
