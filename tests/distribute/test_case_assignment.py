"""Training cases in parts: each rank keeps its own, and the samples are the same for any number of ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hasten.cache.build as homes
from hasten.config.fingerprint import Fingerprint
from hasten.config.schema import CacheConfig, DistributeConfig, RunConfig, TrainConfig
from hasten.distribute.case_assignment import (
    CaseAssignment,
    RankCases,
    cache_of_rank,
    parts_mistake,
    prepared_voxels,
    rank_cases,
)
from hasten.prepare.fingerprint import take_fingerprint
from hasten.sample.share import Share
from tests.cache.sets import SPEC
from tests.distribute.dealt_runs import (
    SAMPLE,
    STEPS,
    TRAINED,
    assignment,
    case_set,
    of_file,
    program_of,
    read_from,
    run,
    segment_of,
)
from tests.sample.test_share import joined, same


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parts")


@pytest.fixture(scope="module")
def cases(folder: Path) -> Any:
    return case_set(folder / "data")


def cache(folder: Path, **options: Any) -> CacheConfig:
    return CacheConfig(dir=str(folder / "cache"), max_points=20, **options)


def lognormal(count: int, seed: int = 0) -> dict[str, float]:
    drawn = np.exp(np.random.default_rng(seed).standard_normal(count))
    return {f"case{number}": float(value) for number, value in enumerate(drawn)}


@given(count=st.integers(4, 40), parts=st.integers(1, 4), number=st.integers(0, 5), random=st.randoms())
def test_a_deal_follows_from_its_fields(count: int, parts: int, number: int, random: Any) -> None:
    costs = lognormal(count)
    own = CaseAssignment(costs=costs, parts=parts, seed=1, every=2)
    result = own.at(number)
    assert sorted(case for part in result for case in part) == sorted(costs)
    counts = [len(part) for part in result]
    assert max(counts) - min(counts) <= 1
    shuffled = list(costs.items())
    random.shuffle(shuffled)
    assert CaseAssignment(costs=dict(shuffled), parts=parts, seed=1, every=2).at(number) == result


def test_every_round_deals_anew_and_balanced() -> None:
    own = CaseAssignment(costs=lognormal(100), parts=4, seed=1, every=2)
    rounds = [own.at(number) for number in range(20)]
    assert len(set(rounds)) == 20
    mean = sum(own.costs.values()) / 4
    assert all(sum(own.costs[name] for name in part) <= 1.01 * mean for parts in rounds for part in parts)
    # Over time every case meets every other one, as one shuffle of all would bring about.
    met = {
        (one, other) for parts in rounds for part in parts for one in part for other in part if one != other
    }  # fmt: skip
    assert len(met) > 0.99 * 100 * 99
    owners = Counter(next(n for n, part in enumerate(parts) if "case7" in part) for parts in rounds)
    assert len(owners) == 4
    assert own.at(0) == replace(own, seed=2).at(0)
    assert own.at(1) != replace(own, seed=2).at(1)
    assert (own.round_samples, own.begun(3)) == (200, 150)
    assert replace(own, every=0).round_samples == 0


@pytest.mark.parametrize("staged", [False, True], ids=["one size", "staged"])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_the_samples_are_the_same_for_any_number_of_ranks(every: int, staged: bool, folder: Path, cases: Any) -> None:
    wanted = list(run(of_file(cases, cache(folder), every), staged=staged))
    assert len(wanted) == STEPS
    for size, first in ((2, 13), (4, 0)):
        shares = [Share(rank, size) for rank in range(size)]
        ranks = [run(of_file(cases, cache(folder), every, share), first=first, staged=staged) for share in shares]
        for batch, *own in zip(wanted[first:], *ranks, strict=True):
            assert same(joined(own, 1), batch)


def test_pieces_are_dealt_as_batches_are(folder: Path, cases: Any) -> None:
    """In two pieces with 2 parts each; pieces are part of what decides the samples."""
    two = replace(assignment(0), parts=2)

    def batches(share: Share) -> Any:
        return segment_of(RankCases(two, share, read_from(cases, cache(folder))), 0).batches(0, 6)

    wanted = batches(Share(pieces=2))
    for batch, *own in zip(wanted, *[batches(Share(rank, 2, 2)) for rank in range(2)], strict=True):
        assert same(joined(own, 2), batch)


def test_every_case_is_seen_as_often_in_a_round(folder: Path, cases: Any) -> None:
    """8 cases, 4 parts of 2, 4 samples a step: a round of 3 epochs is 6 steps."""
    parts = of_file(cases, cache(folder), 3)
    for number in range(3):
        segment = segment_of(parts, number)
        drawn = [case for each in segment.draws(6 * number, 6 * number + 6) for case in each.case.tolist()]
        assert Counter(drawn) == dict.fromkeys(parts.arena(number).index(TRAINED), 3)


@pytest.mark.parametrize("home", ["file", "ram", "device", "auto"])
def test_a_rank_keeps_its_own_cases_in_memory(
    home: Any, folder: Path, cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`meta` stands for a GPU: what would be copied there is counted, and nothing else may be."""
    share = Share(1, 2)
    own = assignment(0).of_rank(0, share)
    arena = of_file(cases, cache(folder, home=home), 0, share).arena(0)
    assert arena.ids == tuple(case.id for case in cases.cases)
    sizes = [arena.case_bytes[case] for case in arena.index(own)]
    assert arena.pages is None or arena.pages.cases.isdisjoint(arena.index(own)) == (home != "file")
    if home in ("device", "auto"):
        monkeypatch.setattr(homes, "_device_budget", lambda config, device: sum(sizes))
        monkeypatch.setattr(homes, "holds_cases", lambda device: True)
        there = read_from(cases, cache(folder, home=home), "meta")(own)
        assert there.ids == own
        assert there.num_bytes == sum(sizes)
        assert there.store.values["image"].device.type == "meta"


def test_what_has_no_room_on_the_device_stays_in_memory(
    folder: Path, cases: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "_device_budget", lambda config, device: 3000)
    own = assignment(0).of_rank(0, Share(0, 2))
    assert read_from(cases, cache(folder), "meta")(own).home == "ram"


def test_ranks_of_one_host_share_its_free_memory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hasten.distribute.case_assignment.available_memory", lambda: 8000)
    assert cache_of_rank(cache(folder), 4).ram == "1000B"
    assert cache_of_rank(cache(folder), 1).ram == "auto"
    assert cache_of_rank(cache(folder, ram="5GiB"), 4).ram == "5GiB"
    assert cache_of_rank(cache(folder, home="ram"), 4).ram == "auto"


def test_cases_are_dealt_anew_only_where_that_is_set(folder: Path, cases: Any) -> None:
    never = program_of(of_file(cases, cache(folder), 0))
    assert never.segment is not None
    parts = of_file(cases, cache(folder), 2)
    opened: list[int] = []
    real = parts.dealt
    parts.dealt = lambda round: opened.append(round) or real(round)  # type: ignore[assignment, method-assign, func-returns-value]
    now_and_then = program_of(parts, first=9)
    assert now_and_then.segment is None
    assert opened == [2]
    assert len(list(now_and_then.batches(9, STEPS))) == STEPS - 9
    assert opened == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3, 4, 8, 1, 1), r"distribute\.parts: 4 parts, .*3 cases .*; use 3 or fewer"),
        ((30, 4, 8, 1, 3), r"distribute\.parts: 4 parts .* 3 processes; use 3 or 6"),
        ((30, 4, 6, 1, 2), r"sample\.batch_size: 6 .* 4 parts .*; use 4 or 8"),
        ((30, 4, 8, 4, 2), r"in each of 4 pieces \(train\.accumulate\); use 16"),
        ((30, 4, 8, 2, 2), None),
    ],
)
def test_what_cannot_be_dealt_is_told(given: tuple[int, int, int, int, int], message: str | None) -> None:
    import re

    result = parts_mistake(*given)
    assert (result is None) == (message is None)
    assert message is None or re.search(message, result or "")


def test_voxels_are_told_before_anything_is_prepared() -> None:
    fingerprint = Fingerprint(
        name="", num_cases=2, spatial_dims=3, modality="", channels=(), labels={}, shapes=((10, 20, 30), (5, 5, 5)),
        spacings=((2.0, 1.0, 1.0), (1.0, 1.0, 1.0)), sampled_cases=2, intensity={}, foreground_intensity={},
        crop_fraction=1.0,
    )  # fmt: skip
    assert prepared_voxels(fingerprint, ("a", "b"), (1.0, 1.0, 0.5)) == {"a": 24000.0, "b": 250.0}
    assert prepared_voxels(fingerprint, ("a", "b"), (0.0, 2.0, 0.0)) == {"a": 3000.0, "b": 62.5}
    assert prepared_voxels(fingerprint, ("a", "b"), None) == {"a": 6000.0, "b": 125.0}


def test_batches_hold_only_a_ranks_own_cases(folder: Path, cases: Any) -> None:
    share = Share(1, 2)
    parts = of_file(cases, cache(folder), 0, share)
    dealt, arena = parts.dealt(0), parts.arena(0)
    assert [bool(part) for part in dealt.parts] == [False, False, True, True]
    assert {arena.ids[case] for part in dealt.parts for case in part} == set(assignment(0).of_rank(0, share))
    drawn = {case for each in segment_of(parts, 0).draws(0, 6) for case in each.case.tolist()}
    assert drawn == {case for part in dealt.parts for case in part}


def test_the_parts_of_a_run_follow_from_its_settings(cases: Any, folder: Path) -> None:
    config = RunConfig(
        prepare=SPEC,
        cache=cache(folder),
        sample=SAMPLE,
        distribute=DistributeConfig(parts=4, exchange_every=2),
        train=TrainConfig(seed=3),
    )
    given = (cases, TRAINED, take_fingerprint(cases), Share(1, 2), torch.device("cpu"))
    parts = rank_cases(config, *given)
    assert parts.assignment == assignment(2)
    assert set(assignment(2).of_rank(1, Share(1, 2))) <= set(parts.arena(1).ids)
    with pytest.raises(ValueError, match=r"distribute\.parts: 9 parts, but only 8 cases"):
        rank_cases(replace(config, distribute=DistributeConfig(parts=9)), *given)
