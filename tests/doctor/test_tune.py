"""`tune`: from a configuration to tuned.yaml, on a few made-up cases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from hasten.cli.doctor import tune as command
from hasten.config.decision import Accelerator, Accelerators
from hasten.config.load import dump_run, load_run
from hasten.config.schema import RunConfig
from hasten.doctor import training
from hasten.doctor import tune as module
from hasten.doctor.training import RunPlan, with_train
from hasten.doctor.tune import tune
from hasten.phantoms.organs import write_phantoms

FILES = {"tuned.yaml", "tune.json"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tune") / "data"
    write_phantoms(out, num_cases=4, shape=(16, 24, 24), spacing=(10.0, 5.0, 5.0))
    return out


@pytest.fixture
def config(data: Path, tmp_path: Path) -> RunConfig:
    small = ["sample.patch=[8,16,16]", "sample.batch_size=2", "network.channels=[4,8]", "network.strides=[[2,2,2]]"]
    given = (f"data.source={data}", f"cache.dir={tmp_path / 'cache'}", "train.device=cpu", "train.steps=3")
    return load_run(None, (*given, *small, "network.num_res_units=1", "train.precision=fp32"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the measurements come to."""
    outcome: dict[str, Any] = {"busy": False, "asked": []}

    def measured_settings(planned: RunPlan, clock: Any) -> tuple[RunPlan, Accelerators, bool]:
        outcome["asked"].append(planned.config.train.precision)
        settled = with_train(planned, precision="bf16", channels_last=True, compile=False)
        by = {"precision": "measured", "channels-last": "measured", "compiled network": "default"}
        found = {name: Accelerator(True, set_by, "") for name, set_by in by.items()}  # type: ignore[arg-type]
        return settled, found, outcome["busy"]

    monkeypatch.setattr(module, "measured_settings", measured_settings)
    return outcome


def test_what_was_measured_is_in_the_yaml_and_nothing_else(config: RunConfig, measured: Any, tmp_path: Path) -> None:
    result = tune(config, tmp_path / "out")
    assert measured["asked"] == [None], "a field that is set is measured too"
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert load_run(tmp_path / "out" / "tuned.yaml") == result.config
    assert result.changes == {"train.precision": ("fp32", "bf16"), "train.channels_last": (None, True)}
    assert result.config.train.compile is None
    content = json.loads((tmp_path / "out" / "tune.json").read_text())
    assert [change["field"] for change in content["changes"]] == list(result.changes)
    assert content["accelerators"]["precision"]["set_by"] == "measured"


def test_a_busy_machine_gives_the_run_as_it_was(config: RunConfig, measured: Any, tmp_path: Path) -> None:
    measured["busy"] = True
    result = tune(config, tmp_path / "out")
    assert result.config == config == load_run(tmp_path / "out" / "tuned.yaml")
    assert (result.changes, result.busy) == ({}, True)


def test_nothing_is_overwritten_nor_left_behind(config: RunConfig, measured: Any, tmp_path: Path) -> None:
    (tmp_path / "tuned.yaml").write_text("mine")
    for out in (tmp_path, tmp_path / "tuned.yaml"):
        with pytest.raises(ValueError, match="choose another --out"):
            tune(config, out)
    with pytest.raises(ValueError, match=r"data\.source"):
        tune(RunConfig(), tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["tuned.yaml"]


def test_a_short_run_is_compared_and_its_yaml_trains(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hasten.training.run import train

    asked: list[int] = []
    real = training.choose_variant
    monkeypatch.setattr(training, "choose_variant", lambda planned, *given: asked.append(0) or real(planned, *given))
    result = tune(config, tmp_path / "out")
    assert asked
    assert result.accelerators["precision"].set_by in ("measured", "default")
    assert "not tried" in result.accelerators["compiled network"].reason
    assert train(load_run(tmp_path / "out" / "tuned.yaml"), tmp_path / "run")["status"] == "finished"


def test_the_command_takes_yaml_overrides_and_the_folder_of_a_run(
    config: RunConfig, measured: Any, tmp_path: Path
) -> None:
    app = typer.Typer()
    app.command()(command)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text(dump_run(config))
    for number, source in enumerate((tmp_path / "run" / "run.yaml", tmp_path / "run")):
        out = tmp_path / f"out{number}"
        done = CliRunner().invoke(app, [str(source), "train.steps=30", "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert f"hasten train {out / 'tuned.yaml'} --out FOLDER" in done.output
        tuned = load_run(out / "tuned.yaml").train
        assert (tuned.steps, tuned.precision) == (30, "bf16")
