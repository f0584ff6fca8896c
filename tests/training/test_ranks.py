"""A run of two processes is the run of one, and what can't be is told by one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.config.schema import DistributeConfig
from hasten.distribute.strategy import Strategy
from hasten.distribute.world import World
from hasten.observe.rundir import RANKS, read_jsonl
from hasten.phantoms.organs import write_phantoms
from hasten.training.plan import plan_run
from hasten.training.ranks import rank_mistakes, take_up_random
from hasten.training.run import train
from tests.distribute.ranks import run_ranks
from tests.training.rank_runs import PLAIN, configs
from tests.training.runs import assert_same_run, checkpoint, config_of, metrics

CPU = torch.device("cpu")
NAMES = ("plain", "parts", "staged", "tuned")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("ranks")
    write_phantoms(made / "data", num_cases=6, shape=(16, 24, 24))
    return made


@pytest.fixture(scope="module")
def finished(folder: Path) -> list[Any]:
    return run_ranks("tests.training.rank_runs", 2, folder, timeout_s=600)


@pytest.fixture(scope="module")
def single(folder: Path, finished: list[Any]) -> Path:
    for name, config in configs(folder / "data", folder / "cache").items():
        train(config, folder / "single" / name)
    return folder / "single"


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_train_as_one(name: str, folder: Path, single: Path) -> None:
    one, two = single / name, folder / name
    for kind, column in (("train", "loss"), ("validation", "dice")):
        left, right = ([line[column] for line in metrics(run, kind)] for run in (one, two))
        assert left == pytest.approx(right, rel=2e-4, abs=2e-4), kind
        assert len(left) > 1
    ours, theirs = checkpoint(one, "last"), checkpoint(two, "last")
    assert ours["step"] == theirs["step"]
    for part in ("network", "average"):
        for key, value in ours[part].items():
            assert torch.allclose(value, theirs[part][key], atol=1e-3), (part, key)


def test_each_rank_has_a_log_and_the_first_writes_the_rest(folder: Path, finished: list[Any]) -> None:
    assert [result["plain"] for result in finished] == [8, 8]
    logs = [read_jsonl(folder / "plain" / RANKS / f"rank-{rank}.jsonl") for rank in range(2)]
    assert [{line["rank"] for line in log} for log in logs] == [{0}, {1}]
    steps = [[line["step"] for line in log] for log in logs]
    assert steps[0] == steps[1] == [line["step"] for line in metrics(folder / "plain", "train")]


def test_each_rank_is_monitored(folder: Path, finished: list[Any]) -> None:
    starts = [read_jsonl(folder / "plain" / name)[0] for name in ("monitor.jsonl", "monitor-rank1.jsonl")]
    assert [(line["rank"], line["world_size"]) for line in starts] == [(0, 2), (1, 2)]


def test_a_signal_to_one_rank_stops_all_at_a_step_and_the_run_goes_on_exactly(
    folder: Path, finished: list[Any]
) -> None:
    for result in finished:
        assert result["interrupted"] == {"code": 130, "steps": [24, 24]}
    assert_same_run(folder / "whole", folder / "stopped")


def test_a_mistake_is_told_by_one_rank(finished: list[Any]) -> None:
    first, second = finished
    assert first["odd batch"].startswith("sample.batch_size: 3 ")
    assert "2 processes; use 2 or 4" in first["odd batch"]
    assert first["few cases"].startswith("data.source: 1 cases to train on for 2 processes")
    assert "the settings: rank 1 on" in first["other data"]
    assert "give all nodes the same" in first["other data"]
    assert [second[name] for name in ("odd batch", "few cases", "other data")] == ["silent"] * 3
    assert first["broken data"] == "silent"
    assert "gone: does not exist" in second["broken data"]
    assert first["left"] == []


# One process


def planned(folder: Path, *overrides: str) -> Any:
    return plan_run(config_of(folder / "data", folder / "cache", *PLAIN, *overrides))


class Splits(Strategy):
    splits_batch = True


def of(size: int, rank: int = 0) -> Splits:
    return Splits(World(rank=rank, size=size), DistributeConfig())


@pytest.mark.parametrize(
    ("overrides", "size", "names"),
    [
        ((), 1, []),
        ((), 2, []),
        ((), 3, ["sample.batch_size"]),
        (("sample.batch_size=8",), 8, ["data.source"]),
        (("sample.fit_batch=true",), 2, ["sample.fit_batch"]),
        (("train.capture=true",), 2, ["train.capture"]),
        (("distribute.parts=5", "sample.batch_size=5"), 1, ["distribute.parts"]),
        (("distribute.parts=3", "sample.batch_size=6"), 2, ["distribute.parts"]),
    ],
)
def test_what_does_not_go_with_so_many_processes(
    folder: Path, overrides: tuple[str, ...], size: int, names: list[str]
) -> None:
    result = rank_mistakes(planned(folder, *overrides), of(size))
    assert [message.partition(":")[0] for message in result] == names


def test_a_generator_of_another_number_of_ranks_is_not_taken_up() -> None:
    torch.manual_seed(1)
    states = [[torch.get_rng_state()]] * 2
    take_up_random(states, World(rank=1, size=2), CPU, seed=0, step=7)
    same = torch.rand(1)
    assert same == torch.rand(1, generator=torch.Generator().manual_seed(1))
    take_up_random(states, World(rank=1, size=3), CPU, seed=0, step=7)
    assert torch.rand(1) != same
