"""What is known is not asked again; what is doubtful is."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hasten.study.tune.search import ArmResult, Kind, SearchStage
from hasten.study.tune.setting import Setting
from hasten.study.tune.stored import StoredMeasurements

START = Setting.of({"a": False, "b": False})
ONE, OTHER = START.having({"a": True}), START.having({"b": True})
ABOUT = {"machine": "m", "torch": "1"}


class Machine:
    def __init__(self, **result: ArmResult) -> None:
        self.result, self.requests = result, []

    def __call__(
        self, kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float
    ) -> Mapping[Setting, ArmResult]:
        self.requests += arms
        name = {ONE: "one", OTHER: "other"}
        return {arm: self.result[name[arm]] for arm in arms}


WON = ArmResult(outcome="faster", gain=2.0, low=1.9, high=2.1, seconds=1.0, base_seconds=2.0, agreement="0 % off")


def ask(folder: Path, machine: Machine, *, about: dict[str, str] = ABOUT, fresh: bool = False, kind: Kind = "step"):
    kept = StoredMeasurements.open(folder, about, fresh=fresh)
    return kept, kept.measure(machine)(kind, START, [ONE, OTHER], 1.0)


def test_a_second_search_asks_nothing(tmp_path: Path) -> None:
    results = {"one": WON, "other": ArmResult(outcome="failed", why="no compiler")}
    machine = Machine(**results)
    _, first = ask(tmp_path, machine)
    kept, second = ask(tmp_path, machine)
    assert machine.requests == [ONE, OTHER]
    assert first == second == {ONE: results["one"], OTHER: results["other"]}
    assert (kept.asked, kept.answered) == (0, 2)
    assert kept.cost(lambda kind, base, arms: 9.0 * len(arms))("step", START, [ONE, OTHER]) == 0.0


@pytest.mark.parametrize(
    "doubtful",
    [ArmResult(outcome="unclear", gain=1.1), ArmResult(outcome="disagreed", busy=True)],
    ids=["unclear", "busy"],
)
def test_doubtful_results_are_not_kept(tmp_path: Path, doubtful: ArmResult) -> None:
    machine = Machine(one=WON, other=doubtful)
    ask(tmp_path, machine)
    kept, _ = ask(tmp_path, machine)
    assert machine.requests == [ONE, OTHER, OTHER]
    assert kept.cost(lambda kind, base, arms: 9.0 * len(arms))("step", START, [ONE, OTHER]) == 9.0


def test_fresh_another_machine_and_another_kind_ask_again(tmp_path: Path) -> None:
    machine = Machine(one=WON, other=WON)
    ask(tmp_path, machine)
    for number, options in enumerate(({"fresh": True}, {"about": {**ABOUT, "torch": "2"}}, {"kind": "run"}), start=2):
        ask(tmp_path, machine, **options)
        assert len(machine.requests) == 2 * number


def test_ceilings_and_facts_are_kept_and_not_asked_for_where_nothing_is_to_be_measured(tmp_path: Path) -> None:
    asked = []

    def ceiling(stage: SearchStage, base: Setting) -> tuple[float, str]:
        asked.append(stage.name)
        return 1.01, "at best 1.01"

    stage = SearchStage(name="feed", kind="run", changes=({"a": True},))
    for _ in range(2):
        kept = StoredMeasurements.open(tmp_path, ABOUT, fresh=False)
        assert kept.ceiling(ceiling)(stage, START) == (1.01, "at best 1.01")
    assert asked == ["feed"]
    kept.measure(Machine(one=WON, other=WON))("step", START, [ONE], 1.0)
    assert kept.ceiling(ceiling)(SearchStage(name="known", kind="step", changes=({"a": True},)), START) is None
    assert asked == ["feed"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"found": {"x": {"no": 1}}, "facts": {}}'])
def test_a_damaged_file_is_measured_again(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine(one=WON, other=WON)
    kept, _ = ask(tmp_path, machine)
    kept.path.write_text(text)
    with caplog.at_level(logging.WARNING):
        ask(tmp_path, machine)
    assert len(machine.requests) == 4
    assert "measured again" in caplog.text
    assert json.loads(kept.path.read_text())["about"] == ABOUT


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    machine = Machine(one=WON, other=WON)
    with caplog.at_level(logging.WARNING):
        _, result = ask(tmp_path / "file" / "measured", machine)
    assert result[ONE] == WON
    assert "cache.dir" in caplog.text
