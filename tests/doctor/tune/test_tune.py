"""From a configuration to tuned.yaml, on a few made-up cases."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from hasten.cli.tune import tune as command
from hasten.config.load import dump_run, load_run
from hasten.config.schema import RunConfig
from hasten.doctor.training import plan_run
from hasten.doctor.tune import arms as arms_module
from hasten.doctor.tune import run as module
from hasten.doctor.tune import tune
from hasten.doctor.tune.arms import Arms, agreement, judged
from hasten.doctor.tune.run import apply_changes, start_of
from hasten.doctor.tune.search import ArmResult, Kind, Setting
from hasten.observe.compare import Compared, Comparison, judge
from hasten.phantoms.organs import write_phantoms

FILES = {"tuned.yaml", "tune.json"}


class Meter:
    def __init__(self, others: float = 0.0) -> None:
        self.value = others

    def others(self) -> float:
        return self.value


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tune") / "data"
    write_phantoms(out, num_cases=4, shape=(16, 24, 24), spacing=(10.0, 5.0, 5.0))
    return out


@pytest.fixture
def config(data: Path, tmp_path: Path) -> RunConfig:
    return config_of(data, tmp_path)


def config_of(data: Path, folder: Path, *overrides: str) -> RunConfig:
    small = ["sample.patch=[8,16,16]", "sample.batch_size=2", "network.channels=[4,8]", "network.strides=[[2,2,2]]"]
    given = (f"data.source={data}", f"cache.dir={folder / 'cache'}", "train.device=cpu", "train.steps=20")
    return load_run(None, (*given, *small, "network.num_res_units=1", *overrides))


class FakeArms(Arms):
    """Says how fast a setting is without running it."""

    factors: Mapping[tuple[str, Any], float] = {}
    busy = False

    def seconds(self, kind: Kind, setting: Setting) -> float:
        result = 1.0
        for (name, value), factor in self.factors.items():
            counts = name.startswith("infer") == (kind == "validate")
            result *= factor if counts and setting[name] == value else 1.0
        return result

    def measure(self, kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float) -> dict[Setting, ArmResult]:
        results = {}
        for arm in arms:
            gain = self.seconds(kind, base) / self.seconds(kind, arm)
            outcome: Any = "faster" if gain > 1.03 else "slower" if gain < 0.97 else "same"
            outcome = "unclear" if self.busy else outcome
            results[arm] = ArmResult(outcome=outcome, gain=gain, low=gain, high=gain, seconds=gain, busy=self.busy)
        return results


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeArms]:
    arms = type("Fake", (FakeArms,), {})
    monkeypatch.setattr(module, "Arms", arms)
    return arms


def test_what_won_is_in_the_yaml_and_nothing_else(config: RunConfig, fake: type[FakeArms], tmp_path: Path) -> None:
    fake.factors = {
        ("train.precision", "bf16"): 0.5,
        ("train.channels_last", True): 1.5,
        ("train.compile", True): 0.8,
        ("infer.batch_size", 8): 0.5,
    }
    result = tune(config, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert load_run(tmp_path / "out" / "tuned.yaml") == result.config
    assert {name: new for name, (_, new) in result.changes.items()} == {
        "train.precision": "bf16",
        "train.channels_last": False,
        "train.compile": True,
        "sample.compile": False,
        "infer.batch_size": 8,
    }
    assert result.searched.gain is not None
    assert result.searched.gain.gain == pytest.approx(2.5)
    content = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert content["verdict"] == result.verdict
    assert {row["verdict"] for row in content["rows"]} >= {"faster", "slower", "same"}
    assert {row[4] for row in result.table().rows} >= {"faster, taken", "slower", "same"}


def test_a_busy_machine_gives_the_run_as_it_was(config: RunConfig, fake: type[FakeArms], tmp_path: Path) -> None:
    fake.factors, fake.busy = {("train.precision", "bf16"): 0.1}, True
    result = tune(config, tmp_path / "out")
    assert result.config == config == load_run(tmp_path / "out" / "tuned.yaml")
    assert (result.changes, result.searched.busy) == ({}, True)
    assert "train.precision=bf16" in result.verdict  # as promising


def test_too_little_time_gives_the_run_as_it_was_and_says_what_was_not_tried(config: RunConfig, tmp_path: Path) -> None:
    result = tune(config, tmp_path / "out", seconds=1e-6)
    assert result.config == config == load_run(tmp_path / "out" / "tuned.yaml")
    assert {row.verdict for row in result.rows} == {"not tried"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(config: RunConfig, tmp_path: Path, seconds: float) -> None:
    with pytest.raises(ValueError, match="--seconds"):
        tune(config, tmp_path / "out", seconds=seconds)
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten_and_a_missing_source_leaves_nothing_behind(
    config: RunConfig, tmp_path: Path
) -> None:
    (tmp_path / "tuned.yaml").write_text("mine")
    for out in (tmp_path, tmp_path / "tuned.yaml"):
        with pytest.raises(ValueError, match="choose another --out"):
            tune(config, out)
    assert (tmp_path / "tuned.yaml").read_text() == "mine"
    with pytest.raises(ValueError, match="nowhere"):
        tune(config_of(tmp_path / "nowhere", tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# With real steps


@pytest.fixture
def arms(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> Arms:
    monkeypatch.setattr(arms_module, "_RUN_S", 0.01)
    planned = plan_run(config)
    return Arms(planned, start_of(planned), meter=Meter())  # type: ignore[arg-type]


def test_settings_are_compared_with_their_numbers(arms: Arms) -> None:
    start = arms.start
    changes: tuple[dict[str, Any], ...] = (
        {"train.channels_last": True},
        {"train.precision": "bf16"},
    )
    settings = [start.having(change) for change in changes]
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    # The first one is looked at however short the time.
    assert list(arms.measure("train", start, settings[:2], 1e-9)) == settings[:1]
    assert arms.measure("train", start, settings[1:], 1e-9) == {}
    result = arms.measure("train", start, settings, 4.0)
    assert torch.equal(torch.rand(2), expected)
    assert [one.outcome for one in result.values() if one.outcome in ("failed", "disagreed")] == []
    assert all(one.seconds is not None and one.agreement for one in result.values())
    validated = start.having({"infer.batch_size": 1})
    assert arms.measure("validate", start, [validated], 2.0)[validated].gain is not None


COMPONENTS = Arms.components


def damaged(self: Arms, setting: Setting) -> Any:
    components = COMPONENTS(self, setting)
    if setting["train.channels_last"]:
        with torch.no_grad():
            for weight in components.step.update.weights.parameters():
                weight.mul_(3.0)
    return components


def test_what_fails_or_is_wrong_is_told_and_the_others_go_on(arms: Arms, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler here\nwith a long story")

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(Arms, "components", damaged)
    changes: tuple[dict[str, Any], ...] = (
        {"train.compile": True},
        {"train.channels_last": True},
        {"train.precision": "bf16"},
    )
    bad, wrong, good = (arms.start.having(change) for change in changes)
    measured = arms.measure("train", arms.start, [bad, wrong, good], 100.0)
    assert (measured[bad].outcome, measured[bad].why) == ("failed", "no compiler here")
    assert measured[wrong].outcome == "disagreed"
    assert measured[good].gain is not None


@pytest.mark.parametrize(
    ("kind", "trace", "sound"),
    [
        ("train", (1.0, 2.0), True),
        ("train", (1.015, 2.3), True),
        ("train", (1.03, 2.0), False),
        ("train", (1.0, 3.0), False),
        ("train", (float("nan"), 2.0), False),
        ("validate", (1.0, 2.0), True),
        ("validate", (0.0, 2.0), False),
    ],
)
def test_agreement(kind: Kind, trace: tuple[float, float], sound: bool) -> None:
    reference = torch.tensor(1.0), torch.tensor(2.0)
    assert agreement(kind, (torch.tensor(trace[0]), torch.tensor(trace[1])), reference)[0] is sound


def test_a_run_that_does_not_run_is_an_error(arms: Arms, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(self: Arms, kind: Kind, setting: Setting) -> Any:
        raise torch.OutOfMemoryError("much text")

    monkeypatch.setattr(Arms, "build", short)
    with pytest.raises(ValueError, match="out of memory"):
        arms.measure("train", arms.start, [arms.start.having({"train.precision": "bf16"})], 1.0)


def compared(base: list[float], arm: list[float], others: float) -> Comparison:
    gain, low, high, verdict = judge(base, arm, 0.03)
    verdict = "unclear" if others > 0.3 else verdict
    one = Compared(arm="0", base_s=gain, arm_s=1.0, low=low, high=high, verdict=verdict, why="")
    return Comparison(base="base", seconds={"base": base, "0": arm}, others=others, arms={"0": one})


@pytest.mark.parametrize(
    ("base", "arm", "others", "outcome", "busy"),
    [
        ([1.0] * 6, [0.5] * 6, 1.0, "faster", False),
        ([1.0] * 6, [0.8] * 6, 1.0, "unclear", True),
        ([1.0] * 6, [3.0] * 2, 0.0, "slower", False),
        ([1.0] * 6, [3.0] * 6, 1.0, "slower", False),
        ([1.0] * 6, [0.5] * 3, 1.0, "unclear", True),
        ([1.0] * 6, [0.8] * 6, 0.0, "faster", False),
        # Other programs take a core now and then, and the load does not show it.
        ([1.0, 3.0] * 3, [0.1] * 6, 0.0, "unclear", True),
    ],
)
def test_beside_other_programs_only_large_differences_are_concluded(
    base: list[float], arm: list[float], others: float, outcome: str, busy: bool
) -> None:
    result = judged(compared(base, arm, others), "0", "", 0.0)
    assert (result.outcome, result.busy) == (outcome, busy)


def test_a_short_search_of_a_real_run_gives_a_yaml_that_trains(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hasten.training.run import train

    monkeypatch.setattr(arms_module, "_RUN_S", 0.01)
    result = tune(config_of(data, tmp_path, "train.steps=3"), tmp_path / "out", seconds=4.0, meter=Meter())  # type: ignore[arg-type]
    assert any(row.measured is not None for row in result.rows)
    assert train(load_run(tmp_path / "out" / "tuned.yaml"), tmp_path / "run")["status"] == "finished"


@pytest.mark.slow
def test_compiling_is_tried_and_honoured(config: RunConfig, arms: Arms, tmp_path: Path) -> None:
    from hasten.training.run import train

    start = arms.start
    arm = start.having({"train.compile": True, "train.precision": "bf16"})
    result = arms.measure("train", start, [arm], 300.0)[arm]
    assert result.gain is not None
    assert result.once > 0
    train(apply_changes(config, start, arm, ()), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["accelerators"]["compiled network"]["on"]


def test_the_command_takes_yaml_overrides_and_the_folder_of_a_run(
    config: RunConfig, fake: type[FakeArms], tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(command)
    fake.factors = {("train.precision", "bf16"): 0.5}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text(dump_run(config))
    for number, source in enumerate((tmp_path / "run" / "run.yaml", tmp_path / "run")):
        out = tmp_path / f"out{number}"
        done = CliRunner().invoke(app, [str(source), "train.steps=30", "--out", str(out), "--seconds", "30"])
        assert done.exit_code == 0, done.output
        assert f"hasten train {out / 'tuned.yaml'} --out FOLDER" in done.output
        tuned = load_run(out / "tuned.yaml").train
        assert (tuned.steps, tuned.precision) == (30, "bf16")
