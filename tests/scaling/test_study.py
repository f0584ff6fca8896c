from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hasten.config.load import load_run
from hasten.config.schema import RunConfig
from hasten.phantoms.organs import write_phantoms
from hasten.scaling import study
from hasten.scaling.analyse import analyse
from hasten.scaling.study import StudyRequest, arms_of, command_of, last_error, run_study, settings_of, start
from tests.scaling.studies import run_folder
from tests.training.runs import config_of


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_phantoms(tmp_path_factory.mktemp("data") / "set", num_cases=6, shape=(20, 24, 20))


@pytest.fixture
def config(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setattr(study, "usable_cores", lambda: 4)
    monkeypatch.setattr(study.LoadMeter, "others", lambda meter: 0.0)  # whatever else runs here
    return config_of(source, tmp_path / "cache", "sample.batch_size=4")


class Trainings:
    """Stands for the launcher: writes a run that is twice as fast with twice the workers."""

    def __init__(self, failing: Sequence[str] = ()) -> None:
        self.failing = set(failing)
        self.done: list[str] = []
        self.threads: list[int] = []

    def __call__(self, command: Sequence[str], *, threads: int, log: Path) -> int:
        settings = load_run(Path(command[6]))
        folder, world = Path(command[8]), int(command[5])
        self.done.append(folder.name)
        self.threads.append(threads)
        if folder.name in self.failing:
            log.write_text("warning: odd\nerror: no room\nlast words\n")
            folder.mkdir()
            return 2
        run_folder(
            folder, samples_per_s=10.0 * world, world=world, strategy=settings.distribute.strategy,
            seed=settings.train.seed, cores=4,
        )  # fmt: skip
        return 0


def study_json(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "scale.json").read_text())
    return content


def test_the_order_favours_no_count() -> None:
    arms = arms_of((1, 2), ("ddp", "fsdp"), (0, 1))
    assert [arm.folder for arm in arms] == [
        "single-1-seed0", "ddp-2-seed0", "fsdp-2-seed0", "fsdp-2-seed1", "ddp-2-seed1", "single-1-seed1",
    ]  # fmt: skip


def test_a_study_and_what_it_says(config: RunConfig, tmp_path: Path) -> None:
    trainings, said = Trainings(), []
    out = tmp_path / "out"
    wanted = StudyRequest(worlds=(1, 2, 4), seeds=(0, 1, 2))
    entries = run_study(config, out, wanted, echo=said.append, begin=trainings)
    assert len(entries) == len(trainings.done) == 9
    assert trainings.threads[:3] == [4, 2, 1]
    assert {entry["status"] for entry in entries} == {"finished"}
    first = study_json(out)["runs"][0]
    assert (first["world"], first["strategy"], first["mode"], first["threads"]) == (1, "single", "strong", 4)
    assert first["seconds"] > 0
    assert said[0] == "1/9  single, 1 worker, seed 0 ..."
    analysis = analyse(out)
    assert [(one.world, round(one.speedup or 0, 3), len(one.seeds)) for one in analysis.points] == [
        (1, 1.0, 3), (2, 2.0, 3), (4, 4.0, 3),
    ]  # fmt: skip
    # Again: nothing is left to do. With more asked for, only that is trained.
    again = Trainings()
    run_study(config, out, wanted, echo=said.append, begin=again)
    assert again.done == []
    run_study(config, out, StudyRequest(worlds=(1, 2), strategies=("fsdp",)), echo=said.append, begin=again)
    assert again.done == ["fsdp-2-seed0"]
    assert len(study_json(out)["runs"]) == 10


def test_a_failed_training_is_told_and_done_again(config: RunConfig, tmp_path: Path) -> None:
    out, said = tmp_path / "out", []
    first = Trainings(failing=["ddp-2-seed0"])
    entries = run_study(config, out, StudyRequest(worlds=(1, 2, 4)), echo=said.append, begin=first)
    assert [entry["status"] for entry in entries] == ["finished", "failed", "finished"]
    assert "failed: exit code 2, error: no room (see ddp-2-seed0.log)" in [line.strip() for line in said]
    notes = " ".join(analyse(out).notes)
    assert re.search(r"ddp-2-seed0: failed \(exit code 2, .*ddp-2-seed0\.log.*left out", notes)
    again = Trainings()
    entries = run_study(config, out, StudyRequest(worlds=(1, 2, 4)), echo=said.append, begin=again)
    assert again.done == ["ddp-2-seed0"]
    assert {entry["status"] for entry in entries} == {"finished"}


def test_an_interrupted_study_goes_on_with_the_training_it_was_in(config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trainings = Trainings()

    def interrupted(command: Sequence[str], *, threads: int, log: Path) -> int:
        if "ddp-2-seed0" in command[8]:
            Path(command[8]).mkdir()
            (Path(command[8]) / "run.yaml").write_text("")
            raise KeyboardInterrupt
        return trainings(command, threads=threads, log=log)

    with pytest.raises(KeyboardInterrupt):
        run_study(config, out, StudyRequest(worlds=(1, 2)), echo=lambda line: None, begin=interrupted)
    assert [entry["status"] for entry in study_json(out)["runs"]] == ["finished", "interrupted"]
    run_study(config, out, StudyRequest(worlds=(1, 2)), echo=lambda line: None, begin=trainings)
    assert trainings.done == ["single-1-seed0", "ddp-2-seed0"]


def test_weak_scaling_keeps_epochs_and_grows_the_learning_rate(config: RunConfig, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wanted = StudyRequest(worlds=(1, 4), mode="weak")
    run_study(config, out, wanted, echo=lambda line: None, begin=Trainings())
    one, four = (load_run(out / f"{name}-seed0.yaml") for name in ("single-1", "ddp-4"))
    assert (one.sample.batch_size, one.train.steps, one.train.validate_every) == (4, 14, 4)
    assert (four.sample.batch_size, four.train.steps, four.train.validate_every) == (16, 4, 1)
    assert (four.train.learning_rate_batch, four.train.learning_rate) == (4, one.train.learning_rate)
    assert "Weak scaling" in " ".join(analyse(out).notes)
    with pytest.raises(ValueError, match=r"other settings \(scale\)"):
        run_study(config, out, StudyRequest(worlds=(1, 2)), echo=lambda line: None, begin=Trainings())


def test_a_study_of_other_settings_is_left_alone(config: RunConfig, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_study(config, out, StudyRequest(worlds=(1,)), echo=lambda line: None, begin=Trainings())
    other = config_of(source, tmp_path / "cache", "sample.batch_size=4", "train.steps=20")
    with pytest.raises(ValueError, match=r"other settings \(train\); .*another folder"):
        run_study(other, out, StudyRequest(worlds=(1,)), echo=lambda line: None, begin=Trainings())
    shutil.rmtree(out / "single-1-seed0")
    (out / "ddp-2-seed0").mkdir()
    with pytest.raises(ValueError, match=r"ddp-2-seed0: is in the way of ddp, 2 workers, seed 0"):
        run_study(config, out, StudyRequest(worlds=(2,)), echo=lambda line: None, begin=Trainings())
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.png").write_text("")
    with pytest.raises(ValueError, match="is not empty and holds no study to continue"):
        run_study(config, tmp_path / "photos", StudyRequest(worlds=(1,)), echo=lambda line: None, begin=Trainings())


@pytest.mark.parametrize(
    ("overrides", "wanted", "message"),
    [
        ([], {"worlds": (1, 8)}, r"--worlds 8: there are \d cases to train on"),
        (["data.split.fraction=0.2"], {"worlds": (5,)}, r"--worlds 5: this machine has 4 cores.*--oversubscribe"),
        ([], {"worlds": (3,)}, r"sample\.batch_size: 4 .* 3 processes.*--mode weak"),
        (["train.budget=5"], {"worlds": (1,)}, r"train\.budget: cuts the slower trainings short"),
        (["distribute.strategy=ddp"], {"worlds": (1,)}, r"distribute\.strategy: --strategies chooses it here"),
    ],
)
def test_what_can_not_be_studied(
    config: RunConfig, source: Path, tmp_path: Path, overrides: list[str], wanted: dict[str, Any], message: str
) -> None:
    given = config_of(source, tmp_path / "cache", "sample.batch_size=4", *overrides)
    with pytest.raises(ValueError, match=message):
        run_study(given, tmp_path / "out", StudyRequest(**wanted), echo=lambda line: None, begin=Trainings())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"worlds": ()}, "--worlds: must name at least one"),
        ({"worlds": (1, 1)}, "--worlds: must name at least one, each once"),
        ({"worlds": (0, 1)}, "--worlds must be 1 or more"),
        ({"worlds": (1,), "strategies": ("dp",)}, "--strategies dp: must be of ddp, fsdp"),
        ({"worlds": (1,), "threads": 0}, "--threads 0"),
    ],
)
def test_what_can_not_be_wanted(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StudyRequest(**fields)


def test_a_pipeline_sees_the_whole_batch(config: RunConfig) -> None:
    (arm,) = arms_of((3,), ("pipeline",), (5,))
    settings = settings_of(config, arm, "strong")
    assert (settings.sample.batch_size, settings.train.seed, settings.distribute.strategy) == (4, 5, "pipeline")


def test_a_command_runs_with_its_threads_and_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    log = tmp_path / "log"
    code = "import os, sys; print(os.environ['OMP_NUM_THREADS'], os.environ.get('RANK')); sys.exit(7)"
    assert start([sys.executable, "-c", code], threads=3, log=log) == 7
    assert log.read_text() == "3 None\n"
    assert last_error(log) == "3 None"
    assert last_error(tmp_path / "absent") == ""
    assert command_of(Path("a.yaml"), Path("out"), 2)[1:] == [
        "-m", "hasten", "launch", "--nproc", "2", "a.yaml", "--out", "out", "--quiet",
    ]  # fmt: skip


def test_a_study_that_is_asked_to_end_lets_its_training_save(tmp_path: Path) -> None:
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    code = (
        "import pathlib, signal, sys, time\n"
        "def save(number, frame):\n"
        f"    pathlib.Path({str(saved)!r}).write_text('')\n"
        "    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, save)\n"
        f"pathlib.Path({str(ready)!r}).write_text('')\n"
        "while True: time.sleep(0.01)\n"  # a pause would miss a signal that comes just before it
    )

    def ask() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    threading.Thread(target=ask, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        start([sys.executable, "-c", code], threads=1, log=tmp_path / "log")
    assert saved.exists()
    assert signal.getsignal(signal.SIGTERM) is before
