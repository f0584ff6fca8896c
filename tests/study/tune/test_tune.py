"""From a configuration to tuned.yaml, on a few made-up cases."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from hasten.cases.phantom import write_phantoms
from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.engine.run import train
from hasten.engine.run_plan import plan_run
from hasten.observe.compare import Compared, Comparison, judge
from hasten.study.tune import run as module
from hasten.study.tune import tune
from hasten.study.tune.arm_builder import Arm, ArmBuilder
from hasten.study.tune.arm_timer import ArmTimer, _measured
from hasten.study.tune.search import ArmResult, Kind, SearchStage
from hasten.study.tune.setting import Setting
from hasten.study.tune.space import Room, fit_memory, start_of

FILES = {"tuned.yaml", "tune.json", "tune.html"}


class QuietMeter:
    def others(self) -> float:
        return 0.0


class BusyMeter:
    def others(self) -> float:
        return 1.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tune") / "data"
    write_phantoms(out, num_cases=4, shape=(16, 24, 24), spacing=(10.0, 5.0, 5.0))
    return out


@pytest.fixture
def config(data: Path, tmp_path: Path) -> RunConfig:
    return config_of(data, tmp_path)


def config_of(data: Path, folder: Path, *overrides: str) -> RunConfig:
    given = (
        f"data.source={data}", f"cache.dir={folder / 'cache'}", "sample.patch=[8,16,16]", "sample.batch_size=2",
        "network.channels=[4,8]", "network.strides=[[2,2,2]]", "network.num_res_units=1", "train.steps=20",
        "train.device=cpu",
    )  # fmt: skip
    return load_run(None, (*given, *overrides))


class FakeTimer:
    """Says how fast a setting is without running it."""

    factors: Mapping[tuple[str, Any], float] = {}
    busy = False
    asked = 0

    def __init__(self, builder: ArmBuilder, start: Setting, *, meter: object = None) -> None:
        pass

    def seconds(self, kind: Kind, setting: Setting) -> float:
        result = 1.0
        for (name, value), factor in self.factors.items():
            counts = name.startswith("infer") == (kind == "validate")
            result *= factor if counts and setting[name] == value else 1.0
        return result

    def measure(self, kind: Kind, base: Setting, arms: Sequence[Setting], seconds: float) -> dict[Setting, ArmResult]:
        type(self).asked += len(arms)
        results = {}
        for arm in arms:
            gain = self.seconds(kind, base) / self.seconds(kind, arm)
            outcome: Any = "faster" if gain > 1.03 else "slower" if gain < 0.97 else "same"
            if self.busy:
                outcome = "unclear"
            results[arm] = ArmResult(
                outcome=outcome, gain=gain, low=gain, high=gain, seconds=0.1 * self.seconds(kind, arm),
                base_seconds=0.1 * self.seconds(kind, base), agreement="loss 0 % off", busy=self.busy,
                why="other programs used 1.0 cores meanwhile" if self.busy else "",
            )  # fmt: skip
        return results

    def cost(self, kind: Kind, base: Setting, arms: Sequence[Setting]) -> float:
        return 0.0

    def ceiling(self, stage: SearchStage, base: Setting) -> None:
        return None


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> type[FakeTimer]:
    fake = type("Fake", (FakeTimer,), {})
    monkeypatch.setattr(module, "ArmTimer", fake)
    return fake


def test_what_won_is_in_the_yaml_and_nothing_else(config: RunConfig, timer: type[FakeTimer], tmp_path: Path) -> None:
    timer.factors = {
        ("precision", "bf16"): 0.5, ("compile", "whole"): 0.8, ("threads", 1): 0.7, ("infer_batch", 8): 0.5,
        ("batch_size", 4): 0.95, ("channels_last", True): 1.5,
    }  # fmt: skip
    result = tune(config, tmp_path / "out", larger_batch=True)
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert load_run(tmp_path / "out" / "tuned.yaml") == result.config
    after = {change.field: change.after for change in result.changes}
    assert after.pop("train.capture", False) is False
    assert after == {
        "train.precision": "bf16", "train.channels_last": False, "train.compile": True,
        "sample.compile": False, "infer.batch_size": 8,
    }  # fmt: skip
    assert result.gain is not None
    assert result.gain.gain == pytest.approx(2.5)
    assert any("OMP_NUM_THREADS=1" in text for text in result.suggestions) or torch.get_num_threads() == 1
    assert any("not worth a change of this kind" in text for text in result.suggestions)
    content = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert content["verdict"] == result.verdict
    assert {row["verdict"] for row in content["rows"]} >= {"won", "lost", "same"}
    page = (tmp_path / "out" / "tune.html").read_text()
    assert "precision=bf16" in page
    assert "2.50" in page


def test_a_second_search_asks_nothing_and_finds_the_same(
    config: RunConfig, timer: type[FakeTimer], tmp_path: Path
) -> None:
    timer.factors = {("precision", "bf16"): 0.5, ("channels_last", True): 0.8}
    first = tune(config, tmp_path / "one")
    asked = timer.asked
    second = tune(config, tmp_path / "two")
    assert timer.asked == asked > 0
    assert second.config == first.config
    assert any("known from an earlier search" in note for note in second.notes)
    tune(config, tmp_path / "three", fresh=True)
    assert timer.asked == 2 * asked


def test_a_busy_machine_gives_the_run_as_it_was_and_keeps_nothing(
    config: RunConfig, timer: type[FakeTimer], tmp_path: Path
) -> None:
    timer.factors, timer.busy = {("precision", "bf16"): 0.1}, True
    result = tune(config, tmp_path / "out")
    assert result.config == config == load_run(tmp_path / "out" / "tuned.yaml")
    assert result.changes == ()
    assert result.verdict.startswith("No conclusion")
    assert any("end them and tune again" in note for note in result.notes)
    timer.busy = False
    assert tune(config, tmp_path / "again").config.train.precision == "bf16"


def test_too_little_time_gives_the_run_as_it_was_and_says_what_was_not_tried(config: RunConfig, tmp_path: Path) -> None:
    result = tune(config, tmp_path / "out", seconds=1e-6)
    assert result.config == config == load_run(tmp_path / "out" / "tuned.yaml")
    assert {row.verdict for row in result.rows} == {"not tried"}
    assert any("Give more --seconds" in note for note in result.notes)
    assert "Nothing could be measured" in result.verdict
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(config: RunConfig, tmp_path: Path, seconds: float) -> None:
    with pytest.raises(ValueError, match="--seconds"):
        tune(config, tmp_path / "out", seconds=seconds)
    assert not (tmp_path / "out").exists()


def test_what_is_there_is_not_overwritten(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "tuned.yaml").write_text("mine")
    with pytest.raises(ValueError, match="is not empty; choose another --out"):
        tune(config, tmp_path)
    with pytest.raises(ValueError, match="is a file; choose another --out"):
        tune(config, tmp_path / "tuned.yaml")
    assert (tmp_path / "tuned.yaml").read_text() == "mine"


def test_a_source_that_is_not_there_leaves_nothing_behind(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        tune(config_of(tmp_path / "nowhere", tmp_path), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_step_that_does_not_fit_recomputes_its_activations(config: RunConfig) -> None:
    start = start_of(plan_run(config))
    room: dict[str, Any] = {"arena": 0, "home": "ram", "host": 0, "device": 0}
    assert fit_memory(start, Room(step=1 << 30, free=2 << 30, **room)) == (start, None)
    result, row = fit_memory(start, Room(step=2 << 30, free=1 << 30, **room))
    assert result["activations"] == "921MiB"
    assert row is not None
    assert row.why == "a step holds 2 GiB of activations, and 1 GiB are free: they are recomputed"


# With real steps

SMALL = ({"channels_last": True}, {"precision": "bf16"}, {"norm_fusion": False}, {"batch_size": 4}, {"threads": 1})


def timer_of(config: RunConfig, **meter: Any) -> tuple[ArmTimer, Setting]:
    planned = plan_run(config)
    start = start_of(planned)
    timer = ArmTimer(ArmBuilder(planned), start, **meter)
    timer.prepare()
    timer.builder.repeats, timer.builder.run_steps = 1, 2
    return timer, start


def test_settings_are_compared_with_their_numbers(config: RunConfig) -> None:
    timer, start = timer_of(config, meter=QuietMeter())
    result = timer.measure("step", start, [start.having(change) for change in SMALL], 60.0)
    assert len(result) == len(SMALL)
    for setting, measured in result.items():
        assert measured.outcome in ("faster", "slower", "same", "unclear"), (setting, measured.why)
        assert measured.seconds is not None
    assert "another batch" in result[start.having({"batch_size": 4})].agreement
    assert "gradient norm" in result[start.having({"norm_fusion": False})].agreement


def test_every_kind_of_arm_runs(config: RunConfig) -> None:
    timer, start = timer_of(config_of(Path(config.data.source), Path(config.cache.dir or ""), "train.optimizer=adamw"))
    for kind, change in (
        ("run", {"home": "file"}), ("validate", {"infer_batch": 1}), ("update", {"optimizer": "loop"}),
        ("step", {"activations": "1MiB"}),
    ):  # fmt: skip
        arm = start.having(change)
        measured = timer.measure(kind, start, [arm], 1.0)[arm]  # type: ignore[arg-type]
        assert measured.gain is not None, (kind, measured)
        assert measured.outcome != "disagreed", (kind, measured.agreement)


def test_wrong_numbers_are_out_however_fast(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    timer, start = timer_of(config, meter=QuietMeter())
    wrong = start.having({"channels_last": True})
    network = ArmBuilder.network
    build = ArmBuilder.build

    def damaged(self: ArmBuilder, kind: Kind, setting: Setting) -> Any:
        def scaled(builder: ArmBuilder, fused: bool) -> torch.nn.Module:
            made = network(builder, fused)
            with torch.no_grad():
                for weight in made.parameters():
                    weight.mul_(3.0)
            return made

        with pytest.MonkeyPatch.context() as patch:
            if setting == wrong:
                patch.setattr(ArmBuilder, "network", scaled)
            return build(self, kind, setting)

    monkeypatch.setattr(ArmBuilder, "build", damaged)
    measured = timer.measure("step", start, [wrong], 5.0)[wrong]
    assert measured.outcome == "disagreed"
    assert "% off" in measured.why


def test_what_fails_is_told_and_the_others_go_on(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    timer, start = timer_of(config, meter=QuietMeter())

    def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler here\nwith a long story")

    monkeypatch.setattr(torch, "compile", broken)
    bad, good = start.having({"compile": "whole"}), start.having({"channels_last": True})
    measured = timer.measure("step", start, [bad, good], 100.0)
    assert (measured[bad].outcome, measured[bad].why) == ("failed", "no compiler here")
    assert measured[good].gain is not None


def test_a_run_that_does_not_run_is_an_error(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(self: ArmBuilder, kind: Kind, setting: Setting) -> Any:
        raise torch.OutOfMemoryError("much text")

    timer, start = timer_of(config, meter=QuietMeter())
    timer._ready.clear()
    monkeypatch.setattr(ArmBuilder, "build", short)
    with pytest.raises(ValueError, match="the run as it is can't be measured: out of memory"):
        timer.measure("step", start, [start.having({"precision": "bf16"})], 1.0)


def compared(base: list[float], arm: list[float], others: float) -> Comparison:
    gain, low, high, verdict = judge(base, arm, 0.03)
    busy = "unclear" if others > 0.3 else verdict
    one = Compared(
        arm="arm 0", base_s=gain, arm_s=1.0, low=low, high=high, verdict=busy, why="busy" if others > 0.3 else ""
    )
    return Comparison(base="base", seconds={"base": base, "arm 0": arm}, others=others, arms={"arm 0": one})


@pytest.mark.parametrize(
    ("arm", "rounds", "others", "outcome"),
    [(0.5, 6, 1.0, "faster"), (0.8, 6, 1.0, "unclear"), (3.0, 2, 0.0, "slower"), (3.0, 6, 1.0, "slower"),
     (0.5, 3, 1.0, "unclear"), (0.8, 6, 0.0, "faster")],
)  # fmt: skip
def test_beside_other_programs_only_large_differences_are_concluded(
    arm: float, rounds: int, others: float, outcome: str
) -> None:
    ready = Arm(call=lambda: 0.0, trace=(torch.ones(()), torch.ones(())))
    measured = _measured(compared([1.0] * 6, [arm] * rounds, others), "arm 0", "", ready)
    assert measured.outcome == outcome
    assert measured.busy == (outcome == "unclear")


def test_busy_comparisons_say_so(config: RunConfig) -> None:
    timer, start = timer_of(config, meter=BusyMeter())
    arm = start.having({"channels_last": True})
    measured = timer.measure("step", start, [arm], 2.0)[arm]
    assert measured.busy
    assert measured.outcome == "unclear"
    assert timer.ceiling(SearchStage(name="feed", kind="run", changes=({"home": "file"},)), start) is None


def test_a_base_whose_own_times_spread_tells_nothing(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where other programs take a core now and then, and the load does not show it."""
    timer, start = timer_of(config, meter=QuietMeter())
    arm = start.having({"channels_last": True})
    timer.measure("step", start, [arm], 5.0)
    uneven = itertools.cycle([1.0, 3.0]).__next__
    made = {start: uneven, arm: lambda: 0.1}
    monkeypatch.setattr(
        ArmBuilder,
        "build",
        lambda _, kind, setting: Arm(call=made[setting], trace=(torch.ones(()), torch.ones(()))),
    )
    timer._ready.clear()
    measured = timer.measure("step", start, [arm], 5.0)[arm]
    assert (measured.outcome, measured.busy) == ("unclear", True)
    assert "own times spread by" in measured.why


def test_threads_and_random_state_are_as_before(config: RunConfig) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    timer, start = timer_of(config, meter=QuietMeter())
    torch.manual_seed(3)
    timer.measure("step", start, [start.having({"threads": threads + 1})], 1.0)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.rand(2), expected)


def test_a_short_search_of_a_real_run_gives_a_yaml_that_trains(data: Path, tmp_path: Path) -> None:
    result = tune(config_of(data, tmp_path, "train.steps=3"), tmp_path / "out", seconds=4.0, meter=QuietMeter())  # type: ignore[arg-type]
    assert any(row.measured is not None for row in result.rows)
    summary = train(load_run(tmp_path / "out" / "tuned.yaml"), tmp_path / "run")
    assert summary["status"] == "finished"


@pytest.mark.slow
def test_compiling_is_tried_and_honoured(data: Path, tmp_path: Path) -> None:
    config = config_of(data, tmp_path, "train.steps=3")
    timer, start = timer_of(config, meter=QuietMeter())
    arms = [start.having({"compile": how, "precision": "bf16"}) for how in ("whole",)]
    result = timer.measure("step", start, arms, 300.0)
    assert all(measured.gain is not None and measured.once > 0 for measured in result.values())
    tuned = module.apply_changes(config, plan_run(config).config, start, arms[0], ())
    train(tuned, tmp_path / "run")
    engaged = json.loads((tmp_path / "run" / "plan.json").read_text())["accelerators"]
    assert engaged["compiled network"]["on"]


# The command

runner = CliRunner()


def test_the_command_takes_yaml_overrides_and_the_folder_of_a_run(
    config: RunConfig, timer: type[FakeTimer], tmp_path: Path
) -> None:
    import typer

    from hasten.cli.tune import tune as command
    from hasten.config.load import dump_run

    app = typer.Typer()
    app.command()(command)
    timer.factors = {("precision", "bf16"): 0.5}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text(dump_run(config))
    for number, source in enumerate((tmp_path / "run" / "run.yaml", tmp_path / "run")):
        out = tmp_path / f"out{number}"
        done = runner.invoke(app, [str(source), "train.steps=30", "--out", str(out), "--seconds", "30"])
        assert done.exit_code == 0, done.output
        assert f"hasten train {out / 'tuned.yaml'} --out FOLDER" in done.output
        assert load_run(out / "tuned.yaml").train.steps == 30
        assert load_run(out / "tuned.yaml").train.precision == "bf16"
