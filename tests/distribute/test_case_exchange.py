"""Cases that travel between ranks: each is held once, bit for bit, and the samples are those of a single process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hasten.cache.build import get_arena
from hasten.config.schema import CacheConfig, DistributeConfig, RunConfig, TrainConfig
from hasten.distribute.case_assignment import rank_cases, stored_cases
from hasten.distribute.case_exchange import Move, moves, waves
from hasten.prepare.fingerprint import take_fingerprint
from hasten.sample.share import Share
from tests.cache.sets import SPEC
from tests.cache.test_arena_in_memory import arena_of, content
from tests.distribute.dealt_runs import SAMPLE, STEPS, TRAINED, assignment, case_set, digests, of_file, run, sent
from tests.distribute.exchange_ranks import held
from tests.distribute.ranks import run_ranks


@given(st.integers(1, 5), st.integers(0, 12), st.randoms())
def test_moves_bring_what_is_missing(ranks: int, count: int, random: Any) -> None:
    now: list[list[str]] = [[] for _ in range(ranks)]
    then: list[list[str]] = [[] for _ in range(ranks)]
    for case in range(count):
        now[random.randrange(ranks)].append(str(case))
        then[random.randrange(ranks)].append(str(case))
    result = moves(now, then)
    assert len(result) == len(set(result))
    after = [set(names) for names in now]
    for move in result:
        assert move.id in now[move.source]
        assert move.source != move.target
        after[move.target].add(move.id)
    assert all(after[rank] >= set(then[rank]) for rank in range(ranks))
    assert len(result) == sum(len(set(then[rank]) - set(now[rank])) for rank in range(ranks))


def test_targets_take_turns() -> None:
    result = moves([["a", "b", "c", "d"], [], []], [[], ["a", "b"], ["c", "d"]])
    assert [move.target for move in result] == [1, 2, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 50)), max_size=20), st.integers(1, 80))
def test_waves_keep_their_limit(given_moves: list[tuple[int, int, int]], limit: int) -> None:
    sizes = {str(number): size for number, (_, _, size) in enumerate(given_moves)}
    wanted = [Move(str(number), source, target + 4) for number, (source, target, _) in enumerate(given_moves)]
    result = waves(wanted, sizes.__getitem__, limit)
    assert [move for wave in result for move in wave] == wanted
    for wave in result:
        for rank in range(8):
            own = [sizes[move.id] for move in wave if rank in move[1:]]
            assert sum(own) <= limit or len(own) == 1


def test_a_cache_of_some_cases_holds_what_that_of_all_holds(tmp_path: Path) -> None:
    """The points that crops are centred on too, of which a case keeps 20: which ones must not depend on its company."""
    cases = case_set(tmp_path / "data")
    cache = CacheConfig(dir=str(tmp_path / "cache"), max_points=20)
    some = stored_cases(cases, ("case7", "case2", "case4"), SPEC, cache)
    assert some.ids == ("case2", "case4", "case7")
    assert some.home == "file"
    whole = get_arena(cases, SPEC, cache)
    assert all(content(some, name) == content(whole, name) for name in some.ids)
    again = stored_cases(cases, ("case4", "case2", "case7"), SPEC, cache)
    assert again.ids == some.ids
    assert len(list((tmp_path / "cache" / "arena").iterdir())) == 2


def alone(tmp_path: Path, every: int, first: int = 0, *, staged: bool = False) -> list[list[list[str]]]:
    """What a single process makes of the same parts, from a file that holds all cases."""
    cache = CacheConfig(dir=str(tmp_path / "whole"), max_points=20)
    parts = of_file(case_set(tmp_path / "data0"), cache, every)
    return [digests(batch) for batch in run(parts, first=first, staged=staged)]


def check(result: list[Any], world: int, tmp_path: Path) -> None:
    names = "abcde"
    wanted_direct = held(arena_of())
    for number in range(3):
        direct = [each["direct"][number] for each in result]
        assert all(each["back"] and each["rows"] == list(names) for each in direct)
        for rank, each in enumerate(direct):
            assert each["ids"] == [*reversed([n for i, n in enumerate(names) if i % world == (rank - 1) % world])]
            assert each["held"] == {name: wanted_direct[name] for name in each["ids"]}
    whole = get_arena(
        case_set(tmp_path / "data0"), SPEC, CacheConfig(dir=str(tmp_path / "whole"), max_points=20)
    )  # fmt: skip
    bits = held(whole)
    for name, every, first in [("plain", 2, 0), ("resumed", 2, 11), ("staged", 3, 0)]:
        wanted = alone(tmp_path, every, first, staged=name == "staged")
        streams = [each[name] for each in result]
        joined = [
            [[sample for own in pieces for sample in own] for pieces in zip(*shares, strict=True)]
            for shares in zip(*(each["batches"] for each in streams), strict=True)
        ]
        assert joined == wanted
        rounds = list(zip(*(each["rounds"] for each in streams), strict=True))
        assert len(rounds) == (STEPS // 4 if name == "plain" else len(rounds))
        assert len(rounds) > 2
        for ranks in rounds:
            assert sorted(case for own in ranks for case in own) == sorted(TRAINED)
            assert all(own[case] == bits[case] for own in ranks for case in own)
        owners = [{case: rank for rank, own in enumerate(ranks) for case in own} for ranks in rounds]
        assert any(owners[0] != other for other in owners[1:])


def test_two_ranks_exchange_their_cases(tmp_path: Path) -> None:
    check(run_ranks("tests.distribute.exchange_ranks", 2, tmp_path), 2, tmp_path)


@pytest.mark.slow
def test_four_ranks_exchange_their_cases(tmp_path: Path) -> None:
    check(run_ranks("tests.distribute.exchange_ranks", 4, tmp_path, timeout_s=240), 4, tmp_path)


def test_a_rank_begins_with_the_round_it_is_resumed_in(tmp_path: Path) -> None:
    """And prepares no case of another rank, nor of another round."""
    cache = CacheConfig(dir=str(tmp_path / "cache"), max_points=20)
    parts = sent(case_set(tmp_path / "data"), cache, 2, Share(1, 2))
    arena = parts.arena(3)
    assert arena.ids == assignment(2).of_rank(3, Share(1, 2))
    assert arena.home == "ram"
    (entry,) = (tmp_path / "cache" / "arena").iterdir()
    assert (entry / "label.bin").stat().st_size == arena.store.values["label"].numel()
    assert parts.arena(3) is arena


@pytest.mark.parametrize("send", [False, True])
def test_the_parts_of_a_run_follow_from_its_settings(send: bool, tmp_path: Path) -> None:
    cases, cache = case_set(tmp_path / "data"), CacheConfig(dir=str(tmp_path / "cache"), max_points=20)
    config = RunConfig(
        prepare=SPEC, cache=cache, sample=SAMPLE, distribute=DistributeConfig(parts=4, exchange_every=2),
        train=TrainConfig(seed=3),
    )  # fmt: skip
    known = take_fingerprint(cases)
    given = (cases, TRAINED, known, Share(1, 2), torch.device("cpu"))
    parts = rank_cases(config, *given, send=send)
    assert parts.assignment == assignment(2)
    assert set(assignment(2).of_rank(1, Share(1, 2))) <= set(parts.arena(1).ids)
    assert (len(parts.arena(1).ids) == 4) is send
    with pytest.raises(ValueError, match=r"distribute\.parts: 9 parts, but only 8 cases"):
        rank_cases(replace(config, distribute=DistributeConfig(parts=9)), *given)
