"""What is tried for a run, in which order, and from a setting back to a run's YAML."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hasten.config.load import dump_run, load_run
from hasten.config.schema import RunConfig
from hasten.doctor.training import RunPlan, plan_run
from hasten.doctor.tune.run import apply_changes, changes_between, pays_within, stages_of, start_of
from hasten.doctor.tune.search import ArmResult, Setting
from hasten.phantoms.organs import write_phantoms

START = Setting.of(
    {
        "train.precision": "fp32",
        "train.channels_last": False,
        "train.compile": False,
        "train.capture": False,
        "sample.compile": False,
        "infer.batch_size": 4,
    }
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("space") / "data"
    write_phantoms(out, num_cases=3, shape=(8, 16, 16), spacing=(20.0, 8.0, 8.0))
    return out


def planned_of(data: Path, *overrides: str) -> RunPlan:
    given = ("sample.patch=[8,16,16]", "sample.batch_size=4", "network.channels=[4,8]", "network.strides=[[2,2,2]]")
    where = (f"data.source={data}", f"cache.dir={data.parent}", "train.device=cpu")
    return plan_run(load_run(None, (*where, *given, *overrides)))


def test_the_start_is_the_run_and_plain_where_that_is_open(data: Path) -> None:
    assert start_of(planned_of(data)) == START
    start = start_of(planned_of(data, "train.precision=bf16", "train.compile=true", "infer.batch_size=2"))
    assert start.apart(START) == {"train.precision": "bf16", "train.compile": True, "infer.batch_size": 2}


def test_every_change_is_of_a_field_that_the_start_has(data: Path) -> None:
    planned = planned_of(data)
    found = stages_of(planned, start_of(planned))
    for stage in found:
        for change in stage.changes:
            START.having(change)
    assert [len(stage.changes) for stage in found] == [4, 3, 1, 3]


@pytest.mark.parametrize(("steps", "pays"), [(1000, True), (500, False)])
def test_compiling_must_pay_within_the_run(steps: int, pays: bool) -> None:
    measured = ArmResult(outcome="faster", seconds=0.1, base_seconds=0.15, once=20.0)
    assert bool(pays_within(steps)(START, measured)) == (not pays)
    assert pays_within(1)(START, ArmResult(outcome="faster", seconds=0.1, base_seconds=0.15)) == ""


def apply(changes: dict[str, Any], *overrides: str, decided: tuple[str, ...] = ()) -> RunConfig:
    return apply_changes(load_run(None, overrides), START, START.having(changes), decided)


@pytest.mark.parametrize("changes", [{}, {"train.precision": "bf16"}, {"infer.batch_size": 8}])
def test_a_change_sets_its_field_alone(changes: dict[str, Any], tmp_path: Path) -> None:
    result = apply(changes)
    assert {name: new for name, (_, new) in changes_between(RunConfig(), result).items()} == changes
    (tmp_path / "tuned.yaml").write_text(dump_run(result))
    assert load_run(tmp_path / "tuned.yaml") == result


def test_what_was_set_and_did_not_win_stays_and_what_was_open_is_settled() -> None:
    decided = ("train.precision", "train.channels_last", "train.compile")
    train = apply({}, "train.channels_last=true", decided=decided).train
    assert (train.precision, train.channels_last, train.compile) == ("fp32", True, False)
