"""What is tried for a run, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hasten.cases.phantom import write_phantoms
from hasten.config.load import load_run
from hasten.engine.run_plan import RunPlan, plan_run
from hasten.study.tune.search import ArmResult, SearchStage
from hasten.study.tune.setting import Setting
from hasten.study.tune.space import BATCH, FEED, VALIDATION, Room, advice, pays_within, space_of, start_of

ROOM: dict[str, Any] = {"step": 100, "free": 1000, "arena": 10, "home": "ram", "host": 100, "device": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("space") / "data"
    write_phantoms(out, num_cases=3, shape=(8, 16, 16), spacing=(20.0, 8.0, 8.0))
    return out


def planned_of(data: Path, *overrides: str) -> RunPlan:
    given = ("sample.patch=[8,16,16]", "sample.batch_size=4", "network.channels=[4,8]", "network.strides=[[2,2,2]]")
    return plan_run(load_run(None, (f"data.source={data}", f"cache.dir={data.parent}", *given, *overrides)))


def stages_of(data: Path, *overrides: str, **room: Any) -> dict[str, SearchStage]:
    planned = planned_of(data, "train.device=cpu", *overrides)
    space = space_of(planned, start_of(planned), Room(**{**ROOM, **room}))
    return {stage.name: stage for stage in space.stages}


def test_every_change_is_of_a_knob_that_the_start_has(data: Path) -> None:
    planned = planned_of(data, "train.device=cpu")
    space = space_of(planned, start_of(planned), Room(**ROOM))
    for stage in space.stages:
        for change in (*stage.changes, *stage.beside):
            space.start.having(change)


def test_the_start_is_the_run_and_plain_where_that_is_open(data: Path) -> None:
    start = start_of(planned_of(data, "train.device=cpu"))
    assert (start["precision"], start["channels_last"], start["compile"]) == ("fp32", False, "off")
    assert start["threads"] == torch.get_num_threads()
    given = ("train.precision=bf16", "train.compile=true")
    start = start_of(planned_of(data, "train.device=cpu", *given))
    assert (start["precision"], start["compile"]) == ("bf16", "whole")


def test_what_matters_together_is_tried_together_and_first(data: Path) -> None:
    stages = stages_of(data)
    first = next(iter(stages.values()))
    assert len(first.changes) == 4
    assert [change["compile"] for change in first.beside] == ["whole"]
    assert [stage.takes for stage in stages.values()] == sorted((s.takes for s in stages.values()), reverse=True)


@pytest.mark.parametrize(
    ("overrides", "room", "sizes"),
    [
        ((), {}, [8, 16, 2]),
        ((), {"step": 300}, [8, 2]),
        ((), {"step": 900}, [2]),
        (("sample.batch_size=1",), {}, [2, 4]),
        (("train.accumulate=4",), {}, [8, 16]),
        (("sample.fit_batch=true",), {}, None),
        (("sample.stages=[[0.5,0.5]]",), {}, None),
    ],
)
def test_batches_that_fit_are_tried(data: Path, overrides: tuple[str, ...], room: Any, sizes: list[int] | None) -> None:
    stage = stages_of(data, *overrides, **room).get(BATCH)
    assert (None if stage is None else [change["batch_size"] for change in stage.changes]) == sizes


def test_another_batch_changes_the_training_and_is_taken_only_where_that_is_wished(data: Path) -> None:
    planned = planned_of(data, "train.device=cpu")
    start, room = start_of(planned), Room(**ROOM)
    for wished in (False, True):
        stages = {stage.name: stage for stage in space_of(planned, start, room, larger_batch=wished).stages}
        assert stages[BATCH].takes is wished
    assert "--larger-batch takes it" in advice({"batch_size": 8})


def test_homes_where_the_cases_are_already_or_do_not_fit_are_left_out(data: Path) -> None:
    def homes(**room: Any) -> list[object]:
        return [change["home"] for change in stages_of(data, **room)[FEED].changes if "home" in change]

    assert homes() == ["file"]
    assert homes(home="file") == ["ram"]
    assert homes(home="file", host=5) == []


def test_the_sliding_window_is_taken_and_what_has_no_field_is_told(data: Path) -> None:
    stages = stages_of(data)
    assert stages[VALIDATION].takes
    assert {change["infer_batch"] for change in stages[VALIDATION].changes if "infer_batch" in change} == {2, 8, 16}
    for name in ("threads", "without norm fusion", "activation checkpointing"):
        assert not stages[name].takes
    assert "unfused optimizer" not in stages
    assert not stages_of(data, "train.optimizer=adamw")["unfused optimizer"].takes
    assert advice({"threads": 1}) == "start it as OMP_NUM_THREADS=1 hasten train ..."


@pytest.mark.parametrize(("steps", "pays"), [(1000, True), (500, False)])
def test_compiling_must_pay_within_the_run(steps: int, pays: bool) -> None:
    base = Setting.of({"compile": "off", "batch_program": False})
    measured = ArmResult(outcome="faster", seconds=0.1, base_seconds=0.15, once=20.0)
    against = pays_within(steps)(base, base.having({"compile": "whole"}), measured)
    assert (against is None) == pays
    if against is not None:
        assert against == "500 steps would save 25 s, and compiling costs a run about 40 s"
    assert pays_within(1)(base, base, measured) is None
