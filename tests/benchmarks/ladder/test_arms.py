"""Every rung trains, on classes and regions, in three dimensions and in two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.ladder.arms import hasten, monai, program
from benchmarks.ladder.chain import network_of
from benchmarks.ladder.record import PHASES
from benchmarks.ladder.task import PeerSettings, Task, write_task
from tests.benchmarks.ladder.conftest import FLAT

Run = Callable[..., dict[str, Any]]
REGIONS = {"regions": {"whole": (1, 2), "core": (2,)}, "peer": PeerSettings(crops=2, loss="dice_focal")}
FLAT_TASK = {
    "shape": (30, 26), "spatial_dims": 2, "patch": (1, 16, 16), "roi": (1, 16, 16), "network": FLAT
}  # fmt: skip


def check(result: dict[str, Any], rung: str, epochs: int) -> None:
    assert (result["arm"], result["stopped"]) == (rung, "max_epochs")
    assert result["steps"] == 2 * epochs  # 3 cases, 2 a batch
    assert len(result["seconds_per_epoch"]) == epochs
    assert all(0 <= point["dice"] <= 1 and 0 <= point["iou"] <= point["dice"] for point in result["curve"])
    assert all(len(point["per_class"]) == 2 for point in result["curve"])
    assert all(result["seconds"][part] > 0 for part in ("import", "train", "validate"))
    assert (result["seconds"]["cache"] > 0) == (rung != "regular")


@pytest.mark.parametrize(
    ("rung", "changes"),
    [("regular", {}), ("threads", REGIONS), ("algorithms", FLAT_TASK)],
    ids=["regular", "threads-regions", "algorithms-2-D"],
)
def test_rungs_of_monai(rung: str, changes: dict[str, Any], make_task: Callable[..., Task], run_arm: Run) -> None:
    result = run_arm(monai.main, make_task(**changes), "--rung", rung, "--max-epochs", "2")
    check(result, rung, 2)
    assert [point["epoch"] for point in result["curve"]] == [1, 2]


@pytest.mark.parametrize("changes", [REGIONS, pytest.param(FLAT_TASK, marks=pytest.mark.slow)], ids=["regions", "2-D"])
def test_batch_program_in_monais_loop(changes: dict[str, Any], make_task: Callable[..., Task], run_arm: Run) -> None:
    result = run_arm(program.main, make_task(**changes), "--max-epochs", "1")
    assert result["arm"] == "program"
    assert (result["steps"], result["stopped"]) == (2, "max_epochs")


def test_a_run_of_hasten_reads_as_an_arm(make_task: Callable[..., Task], run_arm: Run, tmp_path: Path) -> None:
    task = make_task(metric="iou")
    result = run_arm(hasten.main, task, "--run", str(tmp_path / "run"))
    assert (result["arm"], result["steps"], result["stopped"]) == ("hasten", 4, "schedule")
    assert [point["step"] for point in result["curve"]] == [2, 4]
    assert result["curve"][0]["epoch"] == round(2 * 2 / 6, 3)
    assert result["best"] == max(point["iou"] for point in result["curve"])
    assert result["settings"]["sample.batch_size"] == 2
    assert set(PHASES) <= set(result["seconds"])
    assert set(result["engaged"]) > {"surgery"}
    best = torch.load(tmp_path / "run" / "checkpoints" / "best.pt", weights_only=True)
    network_of(task, xyz=False).load_state_dict(best["weights"])


def test_the_engine_has_the_algorithms_of_the_rung_below(make_task: Callable[..., Task], tmp_path: Path) -> None:
    from benchmarks.ladder.record import arm_arguments

    task = make_task(peer=PeerSettings(crops=2, validate_every=5), schedule=100)
    write_task(tmp_path / "t.json", task)
    given = arm_arguments(
        "x", ["--task", str(tmp_path / "t.json"), "--out", "r.json", "--seed", "4", "--device", "cpu"]
    )
    config = hasten.engine_config(given)
    train = config.train
    assert (train.optimizer, train.schedule, train.ema, train.clip_norm) == ("sgd", "constant", 0.0, 0.0)
    assert (train.learning_rate, train.weight_decay) == (0.1, 8e-5)  # of a loss that is twice MONAI's
    assert (config.sample.patch, config.sample.batch_size, config.sample.affine_prob) == ((8, 16, 16), 4, 0.0)
    assert (train.steps, train.validate_every) == (200, 8)  # eight schedules of patches; five epochs of six
    assert (train.seed, train.target) == (4, 0.99)
    own = hasten.hasten_config(given)
    assert (own.train.steps, own.sample.batch_size, own.train.optimizer) == (4, 2, "muon")
    assert own.network == config.network
    assert dataclasses.asdict(config.network) == dataclasses.asdict(task.network)
    assert own.train.budget == given.max_seconds
    budget = dataclasses.replace(task, run=task.run | {"train": task.run["train"] | {"budget": "10min"}})
    own = hasten.hasten_config(dataclasses.replace(given, task=budget))
    assert own.train.budget == 600
    assert own.network == config.network
