"""Reasons are for people: with every one of them empty, runs are planned, trained, resumed and measured as before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hasten
from hasten.config.decision import Accelerator, Decision
from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.doctor.run import doctor
from hasten.observe import compare
from hasten.observe.compare import Compared
from hasten.observe.rundir import PLAN_JSON, RUN_YAML, SUMMARY_JSON
from hasten.phantoms.organs import write_phantoms
from hasten.training.capture import CapturedStep
from hasten.training.run import train
from tests.training.runs import at_step, config_of, metrics

REASONS = {
    Decision: "reason",
    Accelerator: "reason",
    CapturedStep: "reason",
    Compared: "why",
}


def _silence(patch: pytest.MonkeyPatch) -> None:
    for kind, field in REASONS.items():

        def init(self: Any, *given: Any, _own: Any = kind.__init__, _field: str = field, **named: Any) -> None:
            _own(self, *given, **named)
            object.__setattr__(self, _field, "")

        patch.setattr(kind, "__init__", init)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("reasons") / "set", num_cases=6, shape=(24, 40, 40))


def _both(source: Path, folder: Path, outcome: Callable[[RunConfig, Path], Any], *overrides: str) -> Iterator[Any]:
    """The outcome with the reasons, and without."""
    for name in ("told", "silent"):
        config = config_of(
            source, folder / name / "cache", "observe.trackers=[]", "observe.monitor_every=0", *overrides
        )
        with pytest.MonkeyPatch.context() as patch:
            if name == "silent":
                _silence(patch)
            yield outcome(config, folder / name)


def _settled(records: dict[str, Any]) -> dict[str, tuple[bool, str]]:
    return {name: (each["on"], each["set_by"]) for name, each in records.items()}


def test_a_plan(source: Path, tmp_path: Path) -> None:
    def decided(config: RunConfig, folder: Path) -> dict[str, Any]:
        plan = hasten.make_plan(config)
        assert all(each["set_by"] in ("user", "data", "measured", "default") for each in plan["decisions"].values())
        return {name: (each["value"], each["set_by"]) for name, each in plan["decisions"].items()}

    told, silent = _both(source, tmp_path, decided, "train.budget=null", "prepare.intensity=zscore")
    assert told == silent
    assert told["prepare.intensity"][1] == "user"


def test_a_run_and_the_rest_of_it(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(config: RunConfig, folder: Path) -> Any:
        out = folder / "run"
        with at_step(3, "interrupt"), pytest.raises(KeyboardInterrupt):
            train(config, out)
        first = json.loads((out / PLAN_JSON).read_text())["accelerators"]
        summary = train(load_run(out / RUN_YAML), out, resume=True)
        losses = [line["loss"] for line in metrics(out, "train")]
        return (
            losses,
            _settled(first),
            _settled(summary["accelerators"]),
            json.loads((out / SUMMARY_JSON).read_text())["best"],
        )

    told, silent = _both(source, tmp_path, trained, "train.steps=6", "train.compile=null")
    assert told == silent
    _, first, last, _ = told
    assert first["precision"] == (False, "user")
    # What Hasten settled before the stop is still said to be its own, though run.yaml sets it by now.
    assert last["compiled network"] == first["compiled network"] == (False, "measured")


def test_the_doctor_of_a_run(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each comparison is unclear, with a reason: what two runs measure may differ.
    monkeypatch.setattr(compare, "judge", lambda base, arm, least: (1.0, 0.9, 1.1, "unclear"))

    def settings(config: RunConfig, folder: Path) -> dict[str, Any]:
        return doctor.diagnose_run(config, steps=2, seconds=0.2).settings

    told, silent = _both(source, tmp_path, settings, "train.precision=fp32", "train.channels_last=null")
    assert told == silent
