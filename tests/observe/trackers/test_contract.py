"""What every tracker promises: what was logged can be read back with its own reader, and its troubles end no run."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hasten.observe.trackers import Tracking, check_trackers
from tests.observe.trackers.readers import READERS, Held

TRACKERS = sorted(READERS)
CONFIG: dict[str, Any] = {
    "sample": {"patch": (40, 56, 40), "batch_size": 8},
    "train": {"learning_rate": 0.003, "target": None, "compile": True},
}
CLASSES = ("Anterior", "tumor core (T1/T2)")


USERS = ("RANK", "WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI")
OURS = {"WANDB_ERROR_REPORTING": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
"""Set where the user has not, before a tracker is imported."""


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's settings counts, and nothing is left in their home or in the environment."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in (*USERS, *OURS):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of MLflow's without runs: it takes seconds to make one."""
    folder = tmp_path_factory.mktemp("mlflow")
    from mlflow.tracking import MlflowClient

    MlflowClient(f"sqlite:///{folder / 'mlflow.db'}").search_experiments()
    return folder / "mlflow.db"


def tracking(name: str, run: Path, *, first: int = 0) -> Tracking:
    run.mkdir(exist_ok=True)
    return Tracking([name], run, run_name="my run", config=CONFIG, first=first)


def records(first: int, last: int) -> list[Mapping[str, Any]]:
    """Lines of metrics.jsonl and of the monitor after step `first` up to `last`."""
    results: list[Mapping[str, Any]] = []
    for step in range(first + 10, last + 1, 10):
        results.append(
            {"kind": "train", "step": step, "time_s": 0.5 * step, "loss": 4 / step, "lr": 0.003, "samples_per_s": 80.5,
             "wait_share": float("nan")}
        )  # fmt: skip
        results.append(
            {"kind": "sample", "time": 0.5 * step, "host": {"cpu": 50.5}, "gpus": [{"index": 1, "util": 90}]}
        )
        if step % 20 == 0:
            dice = {"Anterior": 0.75, CLASSES[1]: 0.5}
            results.append(
                {"kind": "validation", "step": step, "time_s": 0.5 * step, "dice": 0.625, "dice_per_class": dice}
            )
    return results


def told_by_hasten(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("hasten")]


def points(*steps: int) -> dict[str, list[tuple[int, float]]]:
    """What `records` comes to, by name; 20ths were validated."""
    validated = [step for step in steps if step % 20 == 0]
    return {
        "train/loss": [(step, pytest.approx(4 / step)) for step in steps],
        "train/lr": [(step, pytest.approx(0.003)) for step in steps],
        "train/samples_per_s": [(step, 80.5) for step in steps],
        "monitor/host/cpu": [(step, 50.5) for step in steps],
        "monitor/gpus/1/util": [(step, 90) for step in steps],
        "validation/dice": [(step, 0.625) for step in validated],
        "validation/dice_per_class/Anterior": [(step, 0.75) for step in validated],
        "validation/dice_per_class/tumor core (T1_T2)": [(step, 0.5) for step in validated],
    }


def held_by(name: str, run: Path) -> Held:
    held = READERS[name](run)
    if name == "mlflow":  # which has no brackets in its names
        held.points["validation/dice_per_class/tumor core (T1_T2)"] = held.points.pop(
            "validation/dice_per_class/tumor core _T1_T2_"
        )
    return held


@pytest.mark.parametrize("name", TRACKERS)
def test_what_was_logged_is_read_back_and_a_resumed_run_goes_on(
    name: str,
    tmp_path: Path,
    database: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    shutil.copy(database, tmp_path)
    capfd.readouterr()
    with tracking(name, run) as first:
        for record in records(0, 40):
            first.log(record)
    held = held_by(name, run)
    assert dict(held.points) == points(10, 20, 30, 40)
    assert {key: str(value) for key, value in held.config.items() if not key.startswith("_")} == {
        "sample.patch": "40, 56, 40",
        "sample.batch_size": "8",
        "train.learning_rate": "0.003",
        "train.target": "none",
        "train.compile": "True",
    }
    before, second = held.ids, int(time.time())
    while int(time.time()) == second:  # W&B names its folders by it
        time.sleep(0.05)

    # The process was killed; its last checkpoint was that of step 20.
    with tracking(name, run, first=20) as resumed:
        for record in records(20, 60):
            resumed.log(record)
    # Closing twice and logging late do nothing.
    resumed.close()
    resumed.log({"kind": "train", "step": 70, "loss": 0.5})
    held = held_by(name, run)
    assert name == "tensorboard" or (before < held.ids and len(held.ids) == 2), "another run of the tracker"
    # Those of the killed process are a run of its own.
    again = (30, 40) if name in ("mlflow", "wandb") else ()
    assert {key: sorted(actual) for key, actual in held.points.items()} == {
        key: sorted(actual, key=lambda point: point[0])
        for key, actual in points(10, 20, 30, 40, *again, 50, 60).items()
    }
    asked = {"mlflow": ("MLFLOW_DISABLE_TELEMETRY", "MLFLOW_LOGGING_LEVEL"), "wandb": ("WANDB_ERROR_REPORTING",)}
    assert {key: os.environ.get(key) for key in asked.get(name, ())} == {key: OURS[key] for key in asked.get(name, ())}
    assert not told_by_hasten(caplog)
    said = capfd.readouterr()
    assert not said.out + said.err, "the terminal belongs to the run's progress"


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_one_that_is_not_installed_is_told_with_its_remedy(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, name, None)
    remedy = f"pip install 'hasten[{name}]'"
    assert check_trackers([name]) == [f"observe.trackers: {name} is not installed; {remedy}, or leave it out"]
    with caplog.at_level(logging.WARNING), tracking(name, tmp_path / "run") as tracked:
        tracked.log({"kind": "train", "step": 1, "loss": 0.5})
    (message,) = told_by_hasten(caplog)
    assert message.startswith(f"{name}: the run is not tracked there any further (")
    assert message.endswith(f"; {remedy}")


def test_mlflow_goes_where_its_users_send_it(tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    shutil.copy(database, tmp_path / "other.db")
    elsewhere = f"sqlite:///{tmp_path / 'other.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", elsewhere)
    monkeypatch.chdir(tmp_path)
    with tracking("mlflow", tmp_path / "run") as tracked:
        tracked.log({"kind": "train", "step": 1, "loss": 0.5})
    assert not (tmp_path / "mlflow.db").exists()
    client = MlflowClient(elsewhere)
    experiment = client.get_experiment_by_name("hasten")
    (result,) = client.search_runs([experiment.experiment_id])
    assert result.data.metrics == {"train/loss": 0.5}
