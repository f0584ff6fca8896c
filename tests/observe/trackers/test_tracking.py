"""The road to a tracker: never waited for, never fatal, bounded at its end. A tracker of our own stands in."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hasten.observe.trackers import Tracking, tracking
from hasten.observe.trackers.base import Plain, Scalar, Status, TrackedRun


class Kept:
    """A tracker that keeps what it is given. hold: what begin, write and end wait for."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.ended: list[tuple[Status, dict[str, Plain]]] = []
        self.threads: set[str] = set()
        self.hold = threading.Event()
        self.hold.set()
        self.fail: BaseException | None = None

    def begin(self, place: TrackedRun) -> Kept:
        self.threads.add(threading.current_thread().name)
        self.hold.wait()
        return self

    def write(self, scalars: list[Scalar]) -> None:
        self.hold.wait()
        if self.fail is not None:
            raise self.fail
        self.steps += [scalar.step for scalar in scalars]

    def end(self, status: Status, summary: dict[str, Plain]) -> None:
        self.ended.append((status, summary))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Kept]:
    """Takes the place of the tracker of a name."""
    monkeypatch.delenv("RANK", raising=False)

    def put(name: str) -> Kept:
        kept = Kept()
        module = types.ModuleType(name)
        module.begin = kept.begin  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"hasten.observe.trackers.{name}", module)
        return kept

    return put


def track(folder: Path, *names: str) -> Tracking:
    return Tracking(names, folder, project="p", run_name="r", config={})


def train(step: int) -> dict[str, Any]:
    return {"kind": "train", "step": step, "loss": 0.5}


def test_everything_of_a_tracker_happens_in_a_thread_of_its_own(tmp_path: Path, stand_in: Any) -> None:
    kept = stand_in("mlflow")
    with track(tmp_path, "mlflow", "mlflow") as tracked:
        for step in range(50):
            tracked.log(train(step))
        tracked.summary({"status": "finished", "best": {"value": 0.5}})
    assert kept.steps == list(range(50)), "in order, and once though it was named twice"
    assert kept.ended == [("finished", {"status": "finished", "best/value": 0.5})]
    assert kept.threads == {"hasten-mlflow"}


def test_nothing_waits_for_one_that_hangs(
    tmp_path: Path, stand_in: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, other = stand_in("wandb"), stand_in("mlflow")
    hanging.hold.clear()
    monkeypatch.setattr(tracking, "CLOSE_S", 0.05)
    with track(tmp_path, "wandb", "mlflow") as tracked:
        for step in range(100):
            tracked.log(train(step))
    # The other one may be short of time too on a slow machine, so that only what was said of this one counts.
    assert [message for message in messages(caplog) if message.startswith("wandb")] == [
        "wandb: did not finish in time; its last records may be missing there"
    ]
    assert not hanging.steps
    hanging.hold.set()
    for thread in threading.enumerate():
        if thread.name.startswith("hasten-"):
            thread.join(30)
    assert other.steps == hanging.steps == list(range(100))


def test_a_slow_one_loses_samples_and_no_record_of_the_training(
    tmp_path: Path, stand_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "MOST_SAMPLES", 3)
    kept = stand_in("mlflow")
    kept.hold.clear()
    with track(tmp_path, "mlflow") as tracked:
        for step in range(1, 21):
            tracked.log({"kind": "sample", "step": 1000 + step, "host": {"cpu": 1.0}})
            tracked.log(train(step))
        kept.hold.set()
    assert [step for step in kept.steps if step < 1000] == [*range(1, 21)]
    assert len(kept.steps) < 30


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(3), ValueError("")])
def test_one_that_fails_is_told_once_and_the_others_go_on(
    tmp_path: Path, stand_in: Any, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    broken, other = stand_in("wandb"), stand_in("mlflow")
    broken.fail = error
    with track(tmp_path, "wandb", "mlflow") as tracked:
        for step in range(50):
            tracked.log(train(step))
    reason = str(error) or "ValueError"
    assert messages(caplog) == [f"wandb: the run is not tracked there any further ({reason})"]
    assert other.steps == list(range(50))
    assert not broken.ended


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")])
def test_how_a_run_ended_is_passed_on(
    tmp_path: Path, stand_in: Any, error: type[BaseException], status: Status
) -> None:
    kept = stand_in("mlflow")
    with pytest.raises(error), track(tmp_path, "mlflow"):
        raise error
    with track(tmp_path, "mlflow") as tracked:
        tracked.summary({"status": "interrupted"})  # asked to stop
    assert kept.ended == [(status, {}), ("interrupted", {"status": "interrupted"})]


def test_only_the_first_rank_tracks(tmp_path: Path, stand_in: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = stand_in("mlflow")
    monkeypatch.setenv("RANK", "1")
    with track(tmp_path, "mlflow") as tracked:
        tracked.log(train(1))
    assert not kept.threads
    assert not list(tmp_path.iterdir())


def test_a_forked_process_leaves_the_trackers_alone(
    tmp_path: Path, stand_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = stand_in("mlflow")
    with track(tmp_path, "mlflow") as tracked:
        with monkeypatch.context() as child:
            child.setattr("os.getpid", lambda: -1)
            tracked.log(train(1))
            tracked.close()
        tracked.log(train(2))
    assert kept.steps == [2]


def test_nothing_of_a_tracker_is_imported_before_it_is_wanted() -> None:
    command = (
        "import sys, hasten.observe.trackers as t; t.check_trackers(['tensorboard', 'mlflow', 'wandb']); "
        "print({'torch', 'tensorboard', 'mlflow', 'wandb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "set()\n"


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
